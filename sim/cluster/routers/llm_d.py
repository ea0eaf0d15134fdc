"""The scheduler of llm-d: weighted scores of every replica, of which the highest wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from kvtwin.sim.cluster.cache_events import CacheEvents
from kvtwin.sim.cluster.load import Load
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router, any_least
from kvtwin.sim.cluster.sent_blocks import SentBlocks
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.time_units import MILLISECOND_NS

Scores = list[float]
"""One per replica, from 0 to 1."""


def queue_scores(loads: Sequence[Load]) -> Scores:
    """1 for the shortest queue, 0 for the longest; 1 where all are equally long."""
    waiting = [load.waiting for load in loads]
    most, fewest = max(waiting), min(waiting)
    return [1.0 if most == fewest else (most - each) / (most - fewest) for each in waiting]


def usage_scores(loads: Sequence[Load]) -> Scores:
    """The share of the cache that nobody holds."""
    return [1.0 - load.usage for load in loads]


def precise_scores(num_matched: Sequence[int]) -> Scores:
    """Between those that have some of the prompt, 1 for most of it and 0 for least; 1 if equal; 0 for the others."""
    found = [number for number in num_matched if number]
    most, fewest = max(found, default=0), min(found, default=0)
    return [
        0.0 if not number else 1.0 if most == fewest else (number - fewest) / (most - fewest) for number in num_matched
    ]


@dataclass
class LlmD(Router):
    """llm-d's default profile: queue, usage, and the prompts that were sent before, in blocks of text.

    A replica's blocks are remembered up to the number that its server tells, the least recently sent go first, and of
    one prompt at most ``max_prefix_blocks``. Source: llm-d-inference-scheduler and gateway-api-inference-extension,
    ``prefix-cache-scorer``, ``queue-scorer``, ``kv-cache-utilization-scorer``, ``max-score-picker``.
    """

    name = "llm-d"
    seed: int = field(default=0, kw_only=True, metadata={"common": True})
    queue_weight: float = 2.0
    kv_cache_utilization_weight: float = 2.0
    prefix_weight: float = 3.0
    max_prefix_blocks: int = 256
    refresh_metrics_interval_ms: int = 50

    def begin(self, view: View) -> None:
        self._random = Random(self.seed)
        self._metrics = view.scrape(self.refresh_metrics_interval_ms * MILLISECOND_NS)
        self._begin_to_match(view)

    def choose(self, request: RoutedRequest, view: View) -> int:
        loads = [metrics.at(view.now_ns) for metrics in self._metrics]
        prefix, chosen = self._prefix_scores(request, view)
        weighted = (
            (self.queue_weight, queue_scores(loads)),
            (self.kv_cache_utilization_weight, usage_scores(loads)),
            (self.prefix_weight, prefix),
        )
        totals = [-sum(weight * scores[each] for weight, scores in weighted) for each in range(view.num_replicas)]
        replica = any_least(totals, self._random)
        chosen(replica)
        return replica

    def _begin_to_match(self, view: View) -> None:
        self._block_tokens = view.block_tokens
        self._sent = [SentBlocks(num_blocks) for num_blocks in view.num_blocks]

    def _prefix_scores(self, request: RoutedRequest, view: View) -> tuple[Scores, Callable[[int], None]]:
        """The scores, and what to do with the replica that is chosen in the end."""
        runs, num_private = request.first_blocks(self._block_tokens, self.max_prefix_blocks)
        num_blocks = sum(length for _, length in runs) + num_private
        matched = [sum(number for number, _ in sent.sent_to(runs)) for sent in self._sent]
        scores = [number / num_blocks if num_blocks else 0.0 for number in matched]
        return scores, lambda replica: self._sent[replica].send(runs, num_private, replica, view.now_ns)


@dataclass
class LlmDPrecise(LlmD):
    """llm-d's precise profile: the prefix score is of the blocks that KV events tell of (``precise-prefix-cache``)."""

    name = "llm-d-precise"
    follows_caches = True
    queue_weight: float = 1.0
    kv_cache_utilization_weight: float = 1.0
    prefix_weight: float = 2.0

    def _begin_to_match(self, view: View) -> None:
        self._caches: list[CacheEvents] = view.follow_caches()

    def _prefix_scores(self, request: RoutedRequest, view: View) -> tuple[Scores, Callable[[int], None]]:
        cached = [cache.num_cached_tokens(request.record, view.now_ns) for cache in self._caches]
        return precise_scores(cached), lambda replica: None
