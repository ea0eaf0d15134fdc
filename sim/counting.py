"""Counts of many different values, added without a step of Python for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def add_counts(counter: Counter[int], counts: Mapping[int, int]) -> None:
    """``counter.update(counts)``, which asks a function in Python for every value."""
    found = dict(counts)
    for value in found.keys() & counter.keys():
        found[value] += counter[value]
    dict.update(counter, found)
