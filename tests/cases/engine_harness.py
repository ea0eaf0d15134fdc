"""An engine with a scripted model, driven one iteration at a time: what the small cases are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from kvtwin.engine.block_hashes import Image, LoraAdapter
from kvtwin.engine.block_keys import Content, TokenContent
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.executor import Step
from kvtwin.engine.invariants import InvariantChecker
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler

Prompt = int | Sequence[int]
"""Token ids, or a number of tokens that nobody else has."""


class Engine:
    """One engine of ``usable`` blocks; synchronous unless asked otherwise, invariants checked after each iteration.

    Output tokens are distinct unless :meth:`add` is told them.
    """

    def __init__(self, usable: int, *, check: bool = True, **config) -> None:
        settings = {"async_scheduling": False, "max_num_batched_tokens": 8192, "max_num_seqs": 128} | config
        settings["max_num_seqs"] = min(settings["max_num_seqs"], settings["max_num_batched_tokens"])
        self.scheduler = Scheduler(EngineConfig(num_blocks=usable + 1, **settings))
        self.core = EngineCore(self.scheduler)
        self.cache = self.scheduler.kv_cache
        self.pool = self.cache.pool
        self.statistics = self.scheduler.statistics
        self.requests: dict[str, Request] = {}
        self.steps: list[Step] = []
        self.checker = InvariantChecker(self.scheduler) if check else None
        self._outputs: dict[Request, Sequence[int]] = {}
        self._fresh_tokens = count(1_000_000)
        self._arrivals = count()

    # ---------------------------------------------------------------- requests

    def fresh(self, num_tokens: int) -> list[int]:
        """Token ids that nobody else has."""
        return [next(self._fresh_tokens) for _ in range(num_tokens)]

    def add(
        self,
        name: str,
        prompt: Prompt,
        max_tokens: int = 1,
        *,
        outputs: Sequence[int] = (),
        content: Callable[[Sequence[int]], Content] | None = None,
        lora: str | None = None,
        salt: str | None = None,
        images: Sequence[Image] = (),
        **request,
    ) -> Request:
        """Let a request arrive, later than all before; ``outputs`` are its first output tokens."""
        tokens = self.fresh(prompt) if isinstance(prompt, int) else prompt
        adapter = LoraAdapter(lora, f"/loras/{lora}", 1) if lora else None
        source = content(tokens) if content else TokenContent(self.scheduler.keys, tokens, adapter, salt, images)
        request = {"arrival_ns": next(self._arrivals), "lora": adapter, "images": tuple(images)} | request
        added = Request(name, len(tokens), max_tokens, source, **request)
        self.scheduler.add_request(added)
        self.requests[name] = added
        self._outputs[added] = outputs
        return added

    def serve(self, prompt: Prompt, max_tokens: int = 1, **request) -> int:
        """Serve one more request until everything is done; return the tokens it hit at first."""
        name = f"served{len(self.requests)}"
        self.add(name, prompt, max_tokens, **request)
        self.run()
        return self.hits(name)[0]

    # ---------------------------------------------------------------- time

    def iterate(self) -> Step | None:
        """One turn of the engine's loop; return the step it scheduled."""
        step = self.core.schedule_next()
        if step is not None:
            self.steps.append(step)
            if self.checker:
                self.checker.check_step(step)
        if self.core.must_collect():
            self.core.process(self._sample(self.core.in_flight[0]))
        if self.checker:
            self.checker.check()
        return step

    def run(self, max_iterations: int = 5_000) -> list[Step]:
        """Iterate until nothing is left to do; return the steps scheduled."""
        first = len(self.steps)
        for _ in range(max_iterations):
            if not self.core.has_work():
                return self.steps[first:]
            self.iterate()
        raise AssertionError(f"still busy after {max_iterations} iterations: {self.unfinished()}")

    def run_dry(self, idle_iterations: int = 20, max_iterations: int = 5_000) -> None:
        """Iterate until done, or until ``idle_iterations`` in a row schedule nothing: an engine that hangs."""
        idle = 0
        for _ in range(max_iterations):
            if not self.core.has_work() or idle == idle_iterations:
                return
            step = self.iterate()
            idle = 0 if step is not None and step.requests else idle + 1
        raise AssertionError(f"neither done nor idle after {max_iterations} iterations")

    def _sample(self, step: Step) -> list[list[int]]:
        return [
            [self._next_token(request)] if samples else []
            for request, samples in zip(step.requests, step.samples, strict=True)
        ]

    def _next_token(self, request: Request) -> int:
        outputs, index = self._outputs[request], request.num_output_tokens
        return outputs[index] if index < len(outputs) else next(self._fresh_tokens)

    # ---------------------------------------------------------------- what there is to see

    @property
    def usable(self) -> int:
        return self.pool.num_usable_blocks

    def free_order(self) -> list[int]:
        """Free blocks, the next to be handed out first."""
        return self.pool.free_queue()

    def table(self, name: str) -> list[int]:
        """The block table of a running request."""
        return list(self.requests[name].block_tables[0])

    def cached_prefix(self, tokens: Sequence[int], **identity) -> int:
        """Tokens that a request with these known tokens would hit now. Changes nothing."""
        content = TokenContent(self.scheduler.keys, tokens, **identity)
        return self.cache.find_hit(Request("probe", len(tokens), 1, content)).num_tokens

    def hits(self, name: str) -> list[int]:
        """Hit tokens of each admission of a request, in order."""
        return [
            admission.num_hit_tokens
            for step in self.steps
            for admission in step.admitted
            if admission.request.request_id == name
        ]

    def unfinished(self) -> list[str]:
        """Live requests, running ones first."""
        return [request.request_id for request in (*self.scheduler.running, *self.scheduler.waiting)]


def shape(step: Step | None) -> dict[str, int]:
    """Scheduled tokens per request of a step."""
    if step is None:
        return {}
    return {request.request_id: num_tokens for request, num_tokens in zip(step.requests, step.num_tokens, strict=True)}


def blocks(num_tokens: int, block_size: int) -> int:
    """Blocks that hold ``num_tokens`` slots."""
    return -(-num_tokens // block_size)
