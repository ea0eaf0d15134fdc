"""How well two samples of response times can be told apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Distinction(NamedTuple):
    """How well an attacker does who takes short times for one kind and long times for the other."""

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
    from scipy.stats import ks_2samp, mannwhitneyu

    num_shorter = mannwhitneyu(long, short, method="asymptotic").statistic  # its p-value is not looked at
    apart = ks_2samp(short, long, alternative="greater")
    return Distinction(
        auc=float(num_shorter) / (len(short) * len(long)),
        accuracy=(1 + float(apart.statistic)) / 2,
        is_significant=bool(apart.pvalue < 0.05),
    )
