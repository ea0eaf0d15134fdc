"""The capacity curve of a trace too large for all of its blocks: from a sample of the blocks, by name (SHARDS).

A sample holds every block whose name and place in its run fall into one of so many parts. Stack distances in it are
that much shorter (Waldspurger et al., FAST 2015). References that a sample lacks or has too many count as ones at the
shortest distance, as that paper's SHARDS-adj does: the blocks that most requests share are few. Several disjoint
samples tell how far off their mean may be.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, stdev

from kvtwin.workloads.prefixes.capacity_curve import CapacityCurve
from kvtwin.workloads.prefixes.chains import Chain

NUM_SAMPLES = 8


@dataclass(slots=True)
class _Sample:
    """One part of all blocks. Blocks that nobody can share are dealt out in turn."""

    part: int
    num_parts: int
    chains: list[Chain] = field(default_factory=list)
    num_named_blocks: int = 0
    """References to blocks of prompts that others may share."""
    _num_private_blocks: int = 0

    def add(self, chain: Chain) -> None:
        runs, first, num_prompt_blocks, max_hit_blocks = [], 0, 0, 0
        for name, number in chain.runs:
            skipped = (self.part - name) % self.num_parts
            if skipped < number:
                runs.append((name, self._count(number, skipped)))
            num_prompt_blocks += self._count(chain.num_prompt_blocks - first, skipped, number)
            max_hit_blocks += self._count(chain.max_hit_blocks - first, skipped, number)
            first += number
        before = self._num_private_blocks
        self._num_private_blocks += chain.num_private_blocks
        num_private = self._num_private_blocks // self.num_parts - before // self.num_parts
        self.num_named_blocks += num_prompt_blocks
        self.chains.append(Chain(runs, num_private, num_prompt_blocks, max_hit_blocks))

    def _count(self, num_blocks: int, skipped: int, most: int | None = None) -> int:
        """Blocks in the sample of a run's first ``num_blocks``."""
        if most is not None and num_blocks > most:
            num_blocks = most
        return 0 if num_blocks <= skipped else (num_blocks - skipped - 1) // self.num_parts + 1


class SampledCurve:
    """Hits at every capacity, estimated from `NUM_SAMPLES` disjoint samples that make up ``share`` of the blocks."""

    def __init__(self, chains: Iterable[Chain], share: float) -> None:
        self._num_parts = max(NUM_SAMPLES, round(NUM_SAMPLES / share))
        # Far apart: neighbouring parts hold blocks of the same runs, and would err together.
        samples = [_Sample(index * self._num_parts // NUM_SAMPLES, self._num_parts) for index in range(NUM_SAMPLES)]
        num_named_blocks = 0
        for chain in chains:
            num_named_blocks += min(sum(number for _, number in chain.runs), chain.num_prompt_blocks)
            for sample in samples:
                sample.add(chain)
        self._curves = [CapacityCurve(sample.chains) for sample in samples]
        self._lacking = [num_named_blocks - sample.num_named_blocks * self._num_parts for sample in samples]
        """Per sample the references that it lacks, of all."""
        self.num_distinct_blocks = round(fmean(curve.num_distinct_blocks for curve in self._curves) * self._num_parts)

    def hit_blocks(self, capacity_blocks: int) -> tuple[float, float]:
        """Estimated hits of a cache of so many blocks, and the standard error of the estimate."""
        hits = [
            curve.hit_blocks(capacity_blocks // self._num_parts) * self._num_parts + lacking
            for curve, lacking in zip(self._curves, self._lacking, strict=True)
        ]
        return fmean(hits), stdev(hits) / NUM_SAMPLES**0.5

    def capacity_for(self, share: float) -> int:
        """Fewest blocks, about, with this share of the hits that are possible at all."""
        wanted = share * self.hit_blocks(self.num_distinct_blocks)[0]
        return bisect_left(range(self.num_distinct_blocks), wanted, key=lambda capacity: self.hit_blocks(capacity)[0])
