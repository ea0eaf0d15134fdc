"""Bisection for the highest rate at which something holds, on a fixed grid of rates.

All searches on one grid ask for the same rates, so that they can share what was found there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

STRIDE = 4
"""Rates are tried in these factors until one holds and one fails."""

NUM_STRIDES = 3
"""Most strides up and down: 64 times the base rate, and a 64th."""


@dataclass(frozen=True)
class RateGrid:
    """Rates ``base * STRIDE ** (step / steps_per_stride)``, a whole number of steps each, and rounded."""

    base: float
    steps_per_stride: int

    @classmethod
    def of_precision(cls, base: float, precision: float) -> RateGrid:
        """The coarsest grid whose neighbours differ by at most ``precision`` (0.05: 5 %), and that can be bisected."""
        return cls(base, 2 ** max(0, math.ceil(math.log2(math.log(STRIDE) / math.log1p(precision)))))

    @property
    def most_steps(self) -> int:
        """Steps from the base to the highest rate, and to the lowest."""
        return NUM_STRIDES * self.steps_per_stride

    def rate(self, step: int) -> float:
        """The rate, to six significant digits."""
        return float(f"{self.base * STRIDE ** (step / self.steps_per_stride):.6g}")


@dataclass(frozen=True)
class Bracket:
    """What a search knows: the highest step that held below the lowest that failed.

    It is a boundary; bisection cannot tell whether everything below it holds and everything above it fails.
    """

    grid: RateGrid
    held: int | None = None
    failed: int | None = None

    @property
    def next_step(self) -> int | None:
        """The step to try next; None when the search has ended."""
        stride, most = self.grid.steps_per_stride, self.grid.most_steps
        if self.held is None and self.failed is None:
            return 0
        if self.failed is None:
            assert self.held is not None
            return None if self.held == most else self.held + stride
        if self.held is None:
            return None if self.failed == -most else self.failed - stride
        return None if self.failed - self.held == 1 else (self.held + self.failed) // 2

    def after(self, step: int, held: bool) -> Bracket:
        """The bracket when ``step``, which was `next_step`, has been tried."""
        return replace(self, held=step) if held else replace(self, failed=step)
