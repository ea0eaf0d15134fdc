"""Prompts of which is known how many leading tokens repeat the session so far."""

from __future__ import annotations

from array import array
from collections.abc import Hashable

import numpy as np

_Runs = list[tuple[int, int]]
"""Consecutive ids: the first one, and how many."""


class SessionTokens:
    """Hands out token ids: a number for each token that was never there before, the same ones where tokens repeat."""

    def __init__(self) -> None:
        self._next_id = 0
        self._sequences: dict[Hashable, _Runs] = {}
        self._openings: dict[Hashable, _Runs] = {}

    def turn(
        self, session: Hashable, opening: Hashable, prefix_tokens: int, new_tokens: int, output_tokens: int
    ) -> tuple[array[int], array[int]]:
        """The ids of a turn's prompt and of its output.

        The first ``prefix_tokens`` repeat the session, prompt and output of the turn before, as far as that goes. In a
        first turn they are an ``opening`` that others with the same one share.
        """
        if session in self._sequences:
            before = _cut(self._sequences[session], prefix_tokens)
        else:
            known = self._openings.setdefault(opening, [])
            known += self._new(prefix_tokens - _length(known))
            before = _cut(known, prefix_tokens)
        prompt = before + self._new(prefix_tokens - _length(before) + new_tokens)
        output = self._new(output_tokens)
        self._sequences[session] = prompt + output
        return _ids(prompt), _ids(output)

    def _new(self, number: int) -> _Runs:
        if number <= 0:
            return []
        self._next_id += number
        return [(self._next_id - number, number)]


def _length(runs: _Runs) -> int:
    return sum(number for _, number in runs)


def _cut(runs: _Runs, tokens: int) -> _Runs:
    """The first ``tokens`` of the ids, or all."""
    kept: _Runs = []
    for first, number in runs:
        if tokens <= 0:
            break
        kept.append((first, min(number, tokens)))
        tokens -= number
    return kept


def _ids(runs: _Runs) -> array[int]:
    parts = [np.arange(first, first + number, dtype=np.int64) for first, number in runs]
    return array("q", np.concatenate(parts).tobytes() if parts else b"")
