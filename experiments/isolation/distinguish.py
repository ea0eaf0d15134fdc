"""How well two samples of response times can be told apart."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Distinction(NamedTuple):
    """What an attacker gets who takes short times for one kind and long times for the other."""

    auc: float
    """Probability that a time of the first kind is shorter than one of the second; half of a tie counts."""
    accuracy: float
    """Share of right answers with the best threshold, both kinds being equally frequent; 0.5 is guessing."""
    is_significant: bool
    """Whether equal distributions would give that accuracy less than one time in twenty (Kolmogorov-Smirnov)."""


def distinguish(short: NDArray[np.int64], long: NDArray[np.int64]) -> Distinction:
    """Compare two samples, in any unit. ValueError: one is empty."""
    if not len(short) or not len(long):
        raise ValueError("distinguish: expected two samples, got an empty one")
    short, long = np.sort(short), np.sort(long)
    longer = len(long) - np.searchsorted(long, short, side="right")
    equal = np.searchsorted(long, short, side="right") - np.searchsorted(long, short, side="left")
    auc = float((longer + equal / 2).sum() / (len(short) * len(long)))
    thresholds = np.unique(np.concatenate([short, long]))
    below = [np.searchsorted(times, thresholds, side="right") / len(times) for times in (short, long)]
    distance = max(0.0, float((below[0] - below[1]).max()))
    critical = math.sqrt(-math.log(0.05) / 2 * (1 / len(short) + 1 / len(long)))
    return Distinction(auc, (1 + distance) / 2, distance > critical)
