"""Numbers as distinct values with counts: many, of which few differ; exact for whole numbers of any size."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from operator import mul


class Multiset:
    """Statistics of numbers that occur ``counts[number]`` times. Those of no numbers are errors."""

    def __init__(self, counts: Mapping[int, int] | Mapping[float, int]) -> None:
        self._values = sorted(counts)
        self._counts = [counts[value] for value in self._values]  # type: ignore[index]
        self._ends = list(accumulate(self._counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def total(self) -> float:
        return sum(map(mul, self._values, self._counts))

    def mean(self) -> float:
        return self.total() / len(self)

    def deviation(self) -> float:
        """As numpy.std."""
        mean = self.mean()
        distances = [value - mean for value in self._values]
        return math.sqrt(sum(map(mul, map(mul, distances, distances), self._counts)) / len(self))

    def largest(self) -> float:
        return self._values[-1]

    def percentile(self, percent: float) -> float:
        """Linear between ranks, as numpy.percentile."""
        rank, hundredths = divmod((len(self) - 1) * percent, 100)
        below = self._at(int(rank))
        if not hundredths:
            return float(below)
        return below + (self._at(int(rank) + 1) - below) * hundredths / 100

    def _at(self, rank: int) -> float:
        return self._values[bisect_right(self._ends, rank)]
