"""The default policy of vLLM's and of SGLang's router."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtwin.sim.cluster.prefix_tree import PrefixTree
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router, least
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.time_units import SECOND_NS


@dataclass
class CacheAware(Router):
    """The replica that was sent most of the prompt's text before, unless that is little, or the loads are uneven.

    Of several with equally much it is the one that was sent it first; of several with the least load the first.
    It remembers the text of all prompts per replica, whatever became of it there, and cuts each replica's tree to
    ``max_tree_size`` characters every ``eviction_interval_secs``. Load is requests in flight. Source:
    sgl-project/sglang ``sgl-model-gateway/src/policies/cache_aware.rs``, vllm-project/router ``src/policies``; the
    defaults are SGLang's.
    """

    name = "cache_aware"
    characters_per_token: int = field(default=4, kw_only=True, metadata={"common": True})
    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    max_tree_size: int = 2**26
    eviction_interval_secs: int = 60

    def begin(self, view: View) -> None:
        self._trees = [PrefixTree() for _ in range(view.num_replicas)]
        self._num_prompts = 0
        self._next_cut_ns = self.eviction_interval_secs * SECOND_NS

    def choose(self, request: RoutedRequest, view: View) -> int:
        self._cut_trees(view.now_ns)
        runs, loads = request.prompt(1), view.in_flight
        replica = least(loads)
        if not self._is_uneven(loads):
            matched = [tree.num_matched(runs) for tree in self._trees]
            if max(matched) > self.cache_threshold * request.record.prompt_tokens:
                longest = [each for each, length in enumerate(matched) if length == max(matched)]
                replica = min(longest, key=lambda each: self._trees[each].first_sent(runs))
        self._trees[replica].insert(runs, request.num_private_blocks(1), self._num_prompts)
        self._num_prompts += 1
        return replica

    def _is_uneven(self, loads: list[int]) -> bool:
        most, fewest = max(loads), min(loads)
        return most - fewest > self.balance_abs_threshold and most > self.balance_rel_threshold * fewest

    def _cut_trees(self, now_ns: int) -> None:
        if now_ns < self._next_cut_ns or not self.eviction_interval_secs:
            return
        interval_ns = self.eviction_interval_secs * SECOND_NS
        self._next_cut_ns = (now_ns // interval_ns + 1) * interval_ns
        for tree in self._trees:
            tree.cut(self.max_tree_size // self.characters_per_token)
