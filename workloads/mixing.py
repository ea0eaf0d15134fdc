"""Small integer hashes: values that look random and follow from what they are made of alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BITS = (1 << 64) - 1
GOLDEN_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Constants of SplitMix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014)."""


def fold(state: int, value: int) -> int:
    """64 bits that stand for ``state`` followed by ``value``, a whole number of any size and sign."""
    return finalise((state ^ finalise(value + GOLDEN_GAMMA)) + GOLDEN_GAMMA)


def fold_arrays(states: NDArray[np.uint64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`fold` of each pair."""
    return _mix_array(states ^ _mix_array(values))


def finalise(state: int) -> int:
    """SplitMix64's output for a state, of which the lowest 64 bits count: a bijection of them."""
    state &= _BITS
    state = ((state ^ state >> 30) * _FIRST) & _BITS
    state = ((state ^ state >> 27) * _SECOND) & _BITS
    return state ^ state >> 31


def _mix_array(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = values + np.uint64(GOLDEN_GAMMA)
    values = (values ^ values >> np.uint64(30)) * np.uint64(_FIRST)
    values = (values ^ values >> np.uint64(27)) * np.uint64(_SECOND)
    return values ^ values >> np.uint64(31)
