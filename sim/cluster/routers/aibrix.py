"""AIBrix's prefix-cache policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from random import Random

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router, any_least, text_block_tokens
from kvtwin.sim.cluster.sent_blocks import SentBlocks
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.prefixes.chains import Run
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
        self._blocks = SentBlocks(self.block_number)

    def choose(self, request: RoutedRequest, view: View) -> int:
        self._blocks.forget_before(view.now_ns - self.eviction_duration_minutes * 60 * SECOND_NS)
        loads, runs = view.in_flight, request.prompt(self._block_tokens)
        num_private = request.num_private_blocks(self._block_tokens)
        candidates = list(range(view.num_replicas))
        if max(loads) - min(loads) > self.load_imbalance_abs_count:
            candidates = [replica for replica in candidates if loads[replica] == min(loads)]
        num_blocks = request.record.prompt_tokens // self._block_tokens
        replica = self._matched(runs, num_blocks, candidates, loads)
        if replica is None:
            replica = candidates[any_least([loads[each] for each in candidates], self._random)]
        self._blocks.send(runs, num_private, replica, view.now_ns)
        return replica

    def _matched(self, runs: list[Run], num_blocks: int, candidates: list[int], loads: list[int]) -> int | None:
        """The candidate with most of the prompt's blocks whose load is not too high; None if there is none."""
        left = sum(1 << replica for replica in candidates)
        num_matched = dict.fromkeys(candidates, 0)
        for number, replicas in self._blocks.sent_to(runs):
            left &= replicas
            if not left:
                break
            for replica in candidates:
                num_matched[replica] += number * (left >> replica & 1)
        matched = {replica: 100 * number // num_blocks for replica, number in num_matched.items() if number}
        present = [loads[replica] for replica in candidates]
        mean = sum(present) / len(present)
        deviation = sqrt(sum((load - mean) ** 2 for load in present) / len(present))
        limit = mean + self.standard_deviation_factor * deviation
        for replica in sorted(matched, key=lambda each: (-matched[each], loads[each])):
            if loads[replica] <= limit:
                return replica
        return None
