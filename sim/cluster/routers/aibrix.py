"""AIBrix's prefix-cache policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from random import Random

from kvtwin.sim.cluster.block_lru import BlockLru
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router, any_least, text_block_tokens
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.time_units import SECOND_NS


@dataclass
class AIBrix(Router):
    """The replica that was sent most of the prompt before and is not much busier than the others.

    Where loads differ by more than ``load_imbalance_abs_count`` requests, only the least loaded replicas are looked at.
    Prompts are remembered in blocks of ``block_size`` characters, at most ``block_number`` of them in all, until they
    were not used for ``eviction_duration_minutes``. Source: vllm-project/aibrix
    ``pkg/plugins/gateway/algorithms/prefix_cache.go``, ``pkg/utils/prefixcacheindexer/hash.go``.
    """

    name = "aibrix"
    seed: int = field(default=0, kw_only=True, metadata={"common": True})
    characters_per_token: int = field(default=4, kw_only=True, metadata={"common": True})
    block_size: int = 4
    block_number: int = 200_000
    eviction_duration_minutes: int = 20
    load_imbalance_abs_count: int = 8
    standard_deviation_factor: float = 1.0

    def begin(self, view: View) -> None:
        self._random = Random(self.seed)
        self._block_tokens = text_block_tokens(self.block_size, self.characters_per_token)
        self._blocks = BlockLru(self.block_number)
        self._replicas_of: dict[int, int] = {}
        """Per block, a bit for each replica that was sent it."""

    def choose(self, request: RoutedRequest, view: View) -> int:
        self._blocks.forget_before(view.now_ns - self.eviction_duration_minutes * 60 * SECOND_NS)
        loads, keys = view.in_flight, request.keys(self._block_tokens)
        candidates = list(range(view.num_replicas))
        if max(loads) - min(loads) > self.load_imbalance_abs_count:
            candidates = [replica for replica in candidates if loads[replica] == min(loads)]
        replica = self._matched(keys, candidates, loads)
        if replica is None:
            replica = candidates[any_least([loads[each] for each in candidates], self._random)]
        self._remember(keys, replica, view.now_ns)
        return replica

    def _matched(self, keys: list[int], candidates: list[int], loads: list[int]) -> int | None:
        """The candidate with most of the prompt whose load is not too high; None if there is none."""
        left = sum(1 << replica for replica in candidates)
        num_matched = dict.fromkeys(candidates, 0)
        for key in keys:
            left &= self._replicas_of[key] if key in self._blocks else 0
            if not left:
                break
            for replica in candidates:
                num_matched[replica] += left >> replica & 1
        matched = {replica: 100 * number // len(keys) for replica, number in num_matched.items() if number}
        present = [loads[replica] for replica in candidates]
        mean = sum(present) / len(present)
        deviation = sqrt(sum((load - mean) ** 2 for load in present) / len(present))
        limit = mean + self.standard_deviation_factor * deviation
        for replica in sorted(matched, key=lambda each: (-matched[each], loads[each])):
            if loads[replica] <= limit:
                return replica
        return None

    def _remember(self, keys: list[int], replica: int, now_ns: int) -> None:
        bit, blocks, replicas_of = 1 << replica, self._blocks, self._replicas_of
        for key in keys:
            replicas_of[key] = (replicas_of[key] if key in blocks else 0) | bit
        blocks.use(keys, now_ns)
        if len(replicas_of) > 2 * self.block_number:
            self._replicas_of = {key: bits for key, bits in replicas_of.items() if key in blocks}
