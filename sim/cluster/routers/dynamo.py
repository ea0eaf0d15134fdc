"""NVIDIA Dynamo's KV router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp
from random import Random

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router, any_least
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.prefixes.chains import Run


def cost(
    prefill_tokens: float, overlap_blocks: float, decode_blocks: float, block_tokens: int, settings: Dynamo
) -> float:
    """What it would cost a worker to take a request, in blocks.

    ``prefill_tokens`` are all prompt tokens that it would have to compute if nothing overlapped, its present ones among
    them; ``decode_blocks`` the blocks that would be in use.
    """
    credit_blocks = settings.overlap_score_credit * overlap_blocks
    prefill_blocks = max(0.0, prefill_tokens / block_tokens - credit_blocks)
    return settings.prefill_load_scale * prefill_blocks + decode_blocks


@dataclass
class Dynamo(Router):
    """The worker with the lowest cost: prompt tokens still to compute, and blocks in use, after taking the request.

    It counts both itself: a prompt's uncached tokens from when it is sent until its first token, its full blocks until
    it ends, those that prompts share once. What is cached it knows from KV events. Source: ai-dynamo/dynamo
    ``lib/kv-router/src/scheduling/selector/default.rs``.
    """

    name = "dynamo"
    follows_caches = True
    seed: int = field(default=0, kw_only=True, metadata={"common": True})
    overlap_score_credit: float = 1.0
    prefill_load_scale: float = 1.0
    decode_active_request_weight: float = 0.0
    router_temperature: float = 0.0

    def begin(self, view: View) -> None:
        self._random = Random(self.seed)
        self._block_tokens = view.block_tokens
        self._caches = view.follow_caches()
        self._workers = [Worker() for _ in range(view.num_replicas)]
        view.tell_first_tokens(lambda request_id, replica: self._workers[replica].first_token(request_id))

    def choose(self, request: RoutedRequest, view: View) -> int:
        record, block_tokens = request.record, self._block_tokens
        runs, num_private = request.prompt(block_tokens), request.num_private_blocks(block_tokens)
        cached = [cache.num_cached_tokens(record, view.now_ns) for cache in self._caches]
        costs = [
            cost(
                worker.prefill_tokens + record.prompt_tokens,
                tokens / block_tokens,
                worker.decode_blocks + worker.num_new_blocks(runs) + num_private,
                block_tokens,
                self,
            )
            + self.decode_active_request_weight * len(worker.requests)
            for worker, tokens in zip(self._workers, cached, strict=True)
        ]
        replica = self._draw(costs) if self.router_temperature else any_least(costs, self._random)
        self._workers[replica].take(
            record.request_id, max(0, record.prompt_tokens - cached[replica]), runs, num_private
        )
        return replica

    def ended(self, request: RoutedRequest, replica: int) -> None:
        self._workers[replica].end(request.record.request_id)

    def _draw(self, costs: list[float]) -> int:
        """By a softmax of the negative costs, scaled to a range of 1."""
        lowest, spread = min(costs), max(costs) - min(costs) or 1.0
        weights = [exp(-(each - lowest) / spread / self.router_temperature) for each in costs]
        return self._random.choices(range(len(costs)), weights)[0]


class Worker:
    """What the router knows to be going on at one worker."""

    def __init__(self) -> None:
        self.prefill_tokens = 0
        """Prompt tokens of requests without a first token."""
        self.decode_blocks = 0
        """Different blocks of the prompts of all requests."""
        self.requests: dict[str, tuple[list[Run], int]] = {}
        self._prefilling: dict[str, int] = {}
        self._lengths: dict[int, dict[int, int]] = {}
        """Per run, how many requests have how many of its blocks."""

    def num_new_blocks(self, runs: list[Run]) -> int:
        """Blocks of ``runs`` that no request here has."""
        return sum(max(0, length - max(self._lengths.get(name, _NONE))) for name, length in runs)

    def take(self, request_id: str, num_tokens: int, runs: list[Run], num_private_blocks: int) -> None:
        """A request is sent here, of which ``num_tokens`` are to be computed."""
        self.decode_blocks += self.num_new_blocks(runs) + num_private_blocks
        for name, length in runs:
            lengths = self._lengths.setdefault(name, {})
            lengths[length] = lengths.get(length, 0) + 1
        self.requests[request_id] = runs, num_private_blocks
        self._prefilling[request_id] = num_tokens
        self.prefill_tokens += num_tokens

    def first_token(self, request_id: str) -> None:
        """A prompt has been computed."""
        self.prefill_tokens -= self._prefilling.pop(request_id, 0)

    def end(self, request_id: str) -> None:
        """A request has ended."""
        self.first_token(request_id)
        runs, num_private_blocks = self.requests.pop(request_id)
        self.decode_blocks -= num_private_blocks
        for name, length in runs:
            lengths = self._lengths[name]
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]
            self.decode_blocks -= max(0, length - max(lengths, default=0)) if length not in lengths else 0
            if not lengths:
                del self._lengths[name]


_NONE: Mapping[int, int] = {0: 0}
"""Of a run that no request has."""
