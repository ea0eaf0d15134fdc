"""The engine and a device executor, driven without a clock; small models to drive them with."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.invariants import InvariantChecker
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.gpu.attention import Attention
from kvtwin.gpu.decoder import Decoder
from kvtwin.gpu.decoder_config import TINY, DecoderConfig
from kvtwin.gpu.decoder_weights import DecoderWeights, build_weights
from kvtwin.gpu.executor import DeviceExecutor
from kvtwin.gpu.random_weights import RandomWeights
from kvtwin.gpu.torch_attention import TorchAttention

CPU = torch.device("cpu")
TORCH = TorchAttention()
SMALL = replace(
    TINY,
    name="small",
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_query_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=256,
)


def random_weights(config: DecoderConfig, seed: int, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
    """Random weights for a decoder."""
    return build_weights(config, RandomWeights(seed, device), device, dtype)


def small_decoder(seed: int = 0, dtype: torch.dtype = torch.float32) -> Decoder:
    """Two layers with an untied head."""
    torch.set_num_threads(1)
    return Decoder(SMALL, random_weights(SMALL, seed, CPU, dtype), TORCH)


@dataclass(frozen=True)
class Arrival:
    """A request that arrives before iteration ``turn``."""

    turn: int
    prompt: list[int]
    max_tokens: int
    n: int = 1
    priority: int = 0


class DeviceRun:
    """One engine and one executor; ``outputs`` holds the output tokens by request id."""

    def __init__(
        self,
        decoder: Decoder,
        config: EngineConfig,
        executor_class: type[DeviceExecutor] = DeviceExecutor,
        attention: Attention = TORCH,
        **options,
    ) -> None:
        self.scheduler = Scheduler(config)
        self.core = EngineCore(self.scheduler)
        num_host_blocks = config.num_swap_blocks + config.num_offload_blocks
        cache = decoder.new_cache(config.num_blocks, config.block_size, num_host_blocks)
        self.executor = executor_class(decoder, attention, cache, config, records=True, **options)
        self.outputs: dict[str, list[int]] = {}
        self._checker = InvariantChecker(self.scheduler)

    def serve(self, arrivals: list[Arrival]) -> dict[str, list[int]]:
        """Serve until all are done; output tokens by request id: number of the arrival, and of its sample."""
        tickets = []
        left = sorted(enumerate(arrivals), key=lambda entry: entry[1].turn)
        turn = 0
        while left or self.core.has_work():
            while left and left[0][1].turn <= turn:
                self._add(*left.pop(0))
            step = self.core.schedule_next()
            if step is not None:
                self._checker.check_step(step)
                tickets.append(self.executor.submit(step))
            if self.core.must_collect():
                result = self.executor.collect(tickets.pop(0))
                self.core.process(result.tokens)
            for request in self.scheduler.take_ended():
                self.outputs[request.request_id] = request.content.token_ids(
                    request.num_prompt_tokens, request.num_tokens
                )
            self._checker.check()
            turn += 1
            assert turn < 5_000, "makes no progress"
        return self.outputs

    def _add(self, number: int, arrival: Arrival) -> None:
        parent = None
        for sample in range(arrival.n):
            request = Request(
                f"{number}.{sample}",
                len(arrival.prompt),
                arrival.max_tokens,
                TokenContent(self.scheduler.keys, arrival.prompt),
                arrival_ns=number * 100 + sample,
                priority=arrival.priority,
                parent=parent,
            )
            parent = parent or request
            self.scheduler.add_request(request)


def alone(decoder: Decoder, arrival: Arrival) -> list[int]:
    """What a request says by itself, computed from scratch for every token, without any cache. Greedy."""
    tokens = list(arrival.prompt)
    with torch.inference_mode():
        for _ in range(arrival.max_tokens):
            tokens.append(int(decoder.dense_logits(torch.tensor(tokens))[-1].argmax()))
    return tokens[len(arrival.prompt) :]


def crowd(seed: int, *, memory: dict | None = None, sampling: str = "prefix", vocab: int = SMALL.vocab_size):
    """Configuration and arrivals number ``seed``: prompts that share prefixes, in a pool of 1.2 times the longest."""
    rng = random.Random(seed)
    block_size = rng.choice((4, 8, 16))
    documents = [[rng.randrange(vocab) for _ in range(96)] for _ in range(3)]
    arrivals = []
    for _ in range(rng.randint(8, 16)):
        prompt = rng.choice(documents)[: rng.randint(1, 80)] + [rng.randrange(vocab) for _ in range(rng.randint(0, 6))]
        arrivals.append(
            Arrival(
                turn=rng.choice((0, rng.randint(0, 25))),
                prompt=prompt,
                max_tokens=rng.randint(2, 20),
                n=rng.choice((1, 1, 3)) if sampling == "fork" else 1,
                priority=rng.randrange(3),
            )
        )
    longest = max(len(arrival.prompt) + arrival.max_tokens for arrival in arrivals)
    batched = rng.choice((8, 24, 64, 256))
    config = EngineConfig(
        num_blocks=1 + max(3, -(-longest * 6 // 5 // block_size)),
        block_size=block_size,
        max_model_len=longest,
        max_num_batched_tokens=batched,
        max_num_seqs=min(batched, 8),
        async_scheduling=bool(seed % 2),
        scheduling_policy=rng.choice(("fcfs", "priority")),
        scheduler_reserve_full_isl=rng.random() < 0.5,
        watermark=0.0,
        parallel_sampling=sampling,
        **(memory or {}),
    )
    return config, arrivals
