"""How long cached blocks live and lie idle: vLLM's sampled KV cache metrics (``--kv-cache-metrics``)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from random import Random

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.pool_listener import PoolListener

BUCKETS_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0),
)
"""Upper ends of the buckets of all three histograms in seconds; one without end follows."""

_NS = 10**9
_REMEMBERED_USES = 4
"""Latest uses of a block whose gaps are reported."""


class Histogram:
    """Durations, counted in vLLM's buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        """Per bucket, not cumulative; the last has no end."""
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS_S, duration_ns / _NS)] += 1
        self.sum_ns += duration_ns


class _Sampled:
    """A block that is watched."""

    __slots__ = ("born_ns", "last_use_ns", "uses_ns")

    def __init__(self, now_ns: int) -> None:
        self.born_ns = self.last_use_ns = now_ns
        self.uses_ns: deque[int] = deque(maxlen=_REMEMBERED_USES)


class BlockMetrics(PoolListener):
    """Histograms over blocks that are sampled, with a probability of ``sample_rate``, when they are handed out.

    Lifetime is from there to the next time the block is handed out, idle time from its last use, reuse gaps are those
    between its latest hits.
    """

    def __init__(self, sample_rate: float) -> None:
        self.now_ns = 0
        """The present, set by whoever has a clock."""
        self._sample_rate = sample_rate
        self._random = Random(0)
        self._sampled: dict[int, _Sampled] = {}
        self.clear()

    def clear(self) -> None:
        """Begin at 0."""
        self.lifetimes, self.idle_times, self.reuse_gaps = Histogram(), Histogram(), Histogram()

    def taken(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._report(block)
            if self._random.random() < self._sample_rate:
                self._sampled[block] = _Sampled(self.now_ns)

    def touched(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block != NULL_BLOCK and (sampled := self._sampled.get(block)):
                sampled.last_use_ns = self.now_ns
                sampled.uses_ns.append(self.now_ns)

    def _report(self, block: int) -> None:
        """The block's content is gone."""
        sampled = self._sampled.pop(block, None)
        if sampled is None:
            return
        self.lifetimes.add(self.now_ns - sampled.born_ns)
        self.idle_times.add(self.now_ns - sampled.last_use_ns)
        for earlier, later in pairwise(sampled.uses_ns):
            self.reuse_gaps.add(later - earlier)
