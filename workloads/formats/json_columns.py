"""Lines of JSON that all spell the same keys alike and hold integers only, column by column."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvtwin.workloads.columns import Integers, NotPlainError
from kvtwin.workloads.formats.digits import Digits
from kvtwin.workloads.formats.text_lines import plain_lines


@dataclass(frozen=True, slots=True)
class JsonColumns:
    """Rows of a file, the first of which is its ``line``: an array per key, with a number for each.

    At most one key holds lists: its array has the numbers of all rows, one behind the other, and each row ``lengths``
    of them.
    """

    line: int
    numbers: dict[str, Integers]
    list_key: str | None
    lengths: Integers


def json_columns(paths: Sequence[Path]) -> Iterator[tuple[Path, int, JsonColumns]]:
    """The rows of files, many at a time: their file, how many rows came before them, and they.

    NotPlainError: a line differs from the file's first one in more than its numbers.
    """
    num_rows = 0
    for path in paths:
        spelling, line = None, 1
        for text in plain_lines(path):
            if spelling is None:
                spelling = _Spelling(text[: text.index(b"\n")])
            columns = spelling.read(text, line)
            yield path, num_rows, columns
            line += len(columns.lengths)
            num_rows += len(columns.lengths)


class _Spelling:
    """What the first line of a file has before, between and behind its numbers, as all others must."""

    def __init__(self, line: bytes) -> None:
        try:
            pairs = json.loads(line.decode(), object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            raise NotPlainError from None
        if not isinstance(pairs, _Pairs):
            raise NotPlainError
        starts, ends = (places.tolist() for places in Digits(line).runs())
        self.keys = [key for key, _ in pairs]
        self.list_key = None
        self._before: list[bytes] = []
        """What lies before each key's number, or the first number of its list."""
        first = end = 0
        for key, value in pairs:
            count = 1
            if type(value) is list and value and self.list_key is None:
                self.list_key, count = key, len(value)
            elif type(value) is not int or b"-" in line:
                raise NotPlainError
            if first + count > len(starts):
                raise NotPlainError
            self._before.append(line[end : starts[first]])
            first += count
            end = ends[first - 1]
        if len(set(self.keys)) != len(self.keys) or first != len(starts):
            raise NotPlainError
        self._behind = line[end:]

    def read(self, text: bytes, line: int) -> JsonColumns:
        """The rows of a text of whole lines, the first of which is ``line``."""
        digits = Digits(text)
        starts, ends = digits.runs()
        line_ends = np.flatnonzero(digits.bytes == ord("\n"))
        line_starts = np.concatenate(([0], line_ends[:-1] + 1))
        last = np.searchsorted(starts, line_ends)
        first = np.concatenate(([0], last[:-1]))
        lengths = last - first - (len(self.keys) - 1)
        if (lengths < 1).any() or (self.list_key is None and (lengths != 1).any()):
            raise NotPlainError
        goes_on = np.ones(len(starts), dtype=bool)
        place, end = first, line_starts
        heads: dict[str, Integers] = {}
        for key, before in zip(self.keys, self._before, strict=True):
            _check_text(digits, end, starts[place], before)
            goes_on[place] = False
            heads[key] = place
            place = place + (lengths if key == self.list_key else 1)
            end = ends[place - 1]
        _check_text(digits, end, line_ends, self._behind)
        _check_commas(digits, ends[:-1][goes_on[1:]], starts[goes_on])
        if not digits.are_plain(starts, ends).all():
            raise NotPlainError
        numbers = digits.integers(starts, ends)
        columns = {key: numbers[head] for key, head in heads.items()}
        if self.list_key is not None:
            goes_on[heads[self.list_key]] = True
            columns[self.list_key] = numbers[goes_on]
        return JsonColumns(line, columns, self.list_key, lengths)


class _Pairs(list[tuple[str, object]]):
    """The keys of an object and their values, in order."""


def _check_text(digits: Digits, starts: Integers, ends: Integers, expected: bytes) -> None:
    """NotPlainError: something else than ``expected`` lies at one of these places."""
    if (ends - starts != len(expected)).any():
        raise NotPlainError
    found = digits.bytes[starts[:, None] + np.arange(len(expected))]
    if (found != np.frombuffer(expected, np.uint8)).any():
        raise NotPlainError


def _check_commas(digits: Digits, starts: Integers, ends: Integers) -> None:
    """NotPlainError: something else than a comma, and perhaps a blank, lies at one of these places."""
    lengths, letters = ends - starts, digits.bytes
    is_comma = letters[starts] == ord(",")
    is_comma &= (lengths == 1) | ((lengths == 2) & (letters[starts + 1] == ord(" ")))
    if not is_comma.all():
        raise NotPlainError
