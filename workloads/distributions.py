"""Distributions of whole numbers: tokens, turns, milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Distribution(Protocol):
    """Something to draw whole numbers from."""

    def draw(self, rng: np.random.Generator) -> int: ...


@dataclass(frozen=True)
class Constant:
    """Always ``value``."""

    value: int

    def draw(self, rng: np.random.Generator) -> int:
        return self.value


@dataclass(frozen=True)
class Uniform:
    """From ``low`` to ``high``, both included, all equally likely."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True)
class LogNormal:
    """The logarithm is normal with deviation ``sigma``; rounded, and cut off at ``low`` and ``high``."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return min(max(round(rng.lognormal(math.log(self.median), self.sigma)), self.low), self.high)
