"""Numbers for ids, in the order in which they first appear."""

from __future__ import annotations

import numpy as np

from kvtwin.workloads.columns import Integers, NotPlainError

_LARGEST = 1 << 24
"""Ids below have a place in a table; files with larger ones are read request by request."""


class DenseIds:
    """Gives each id the number of ids that came before it."""

    def __init__(self) -> None:
        self._numbers = np.full(1 << 16, -1, dtype=np.int32)
        """Of each id, its number; -1 if it has none."""
        self._count = 0

    def of(self, ids: Integers) -> Integers:
        """The numbers of ``ids``, none of them negative, which come in this order. NotPlainError: one is very large."""
        largest = int(ids.max(initial=0))
        if largest >= _LARGEST:
            raise NotPlainError
        if largest >= len(self._numbers):
            more = max(largest + 1, 2 * len(self._numbers)) - len(self._numbers)
            self._numbers = np.concatenate((self._numbers, np.full(more, -1, dtype=np.int32)))
        numbers = self._numbers
        new = ids[numbers[ids] < 0]
        numbers[new[::-1]] = np.arange(len(new))[::-1]  # the last assignment counts: where each id first appears
        first = new[numbers[new] == np.arange(len(new))]
        numbers[first] = np.arange(self._count, self._count + len(first))
        self._count += len(first)
        return numbers[ids].astype(np.int64)
