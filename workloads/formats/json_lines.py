"""Lines of JSON as traces write them: exact decimal numbers, and long lists of integers read many at a time."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, BinaryIO

import numpy as np

from kvtwin.workloads.formats.digits import Digits
from kvtwin.workloads.formats.text_lines import chunks_of_lines

_LONG = 64
"""Numbers in a list from which on it is worth a place of its own."""

_PLACE = b"NaN"
"""Stands in a line for a list that was read: no number of JSON, but Python's decoder asks what it is."""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


decoder = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)
"""Decimal numbers become `Decimal`; what is no number is refused."""


def lines_of(file: BinaryIO) -> Iterator[tuple[int, Line]]:
    """The lines of ``file`` that are not blank, with their numbers from 1."""
    number = 0
    for chunk in chunks_of_lines(file):
        lists = _long_lists(chunk)
        ends = [end for _, end, _ in lists]
        start = 0
        for text in chunk.split(b"\n"):
            number += 1
            end = start + len(text)
            if text and not text.isspace():
                first = bisect_left(ends, start)
                yield number, Line(text, start, lists[first : bisect_left(ends, end)])
            start = end + 1
        number -= 1  # behind the last line feed, or the rest is the whole file's last line


class Line:
    """A line of a file, and the long lists of integers in it."""

    __slots__ = ("_lists", "_start", "_text")

    def __init__(self, text: bytes, start: int, lists: list[_List]) -> None:
        self._text = text
        self._start = start
        self._lists = lists

    def value(self) -> Any:
        """The value that the line holds; long lists of integers are arrays. ValueError: it is no JSON."""
        text = self._text
        if not self._lists or b"NaN" in text or b"Infinity" in text:
            return decoder.decode(text.decode().strip())
        pieces, done = [], 0
        for start, end, _ in self._lists:
            pieces.append(text[done : start - self._start])
            done = end - self._start
        pieces.append(text[done:])
        left = iter([numbers for _, _, numbers in self._lists])
        with_places = json.JSONDecoder(parse_float=Decimal, parse_constant=lambda _: next(left))
        try:
            value = with_places.decode(_PLACE.join(pieces).decode().strip())
            if next(left, None) is None:
                return value
        except ValueError:
            pass
        return decoder.decode(text.decode().strip())  # a list lay in a string, or something is wrong with the line


_List = tuple[int, int, "array[int]"]
"""Where the brackets of a list begin and end, and what is in it."""


def _long_lists(text: bytes) -> list[_List]:
    """The lists of at least `_LONG` integers that are not negative, in one of JSON's two usual spellings."""
    if text.count(b",") < _LONG:
        return []
    digits = Digits(text)
    (starts, ends), letters = digits.runs(), digits.bytes
    if len(starts) < _LONG:
        return []
    before, behind = ends[:-1], starts[1:]
    goes_on = np.zeros(len(starts) + 1, dtype=bool)
    inside = goes_on[1:-1]
    inside[:] = letters[before] == ord(",")
    gaps = behind - before
    inside &= (gaps == 1) | ((gaps == 2) & (letters[behind - 1] == ord(" "))) if (gaps == 2).any() else gaps == 1
    edges = np.flatnonzero(goes_on[1:] != goes_on[:-1])
    first, last = edges[::2], edges[1::2]
    is_long = (last - first >= _LONG - 1) & (starts[first] > 0) & (ends[last] < len(text))
    lists: list[_List] = []
    if not is_long.any():
        return lists
    numbers, is_plain = digits.integers(starts, ends), digits.are_plain(starts, ends)
    for one, other in zip(first[is_long].tolist(), last[is_long].tolist(), strict=True):
        start, end = int(starts[one]) - 1, int(ends[other])
        some = slice(one, other + 1)
        if text[start : start + 1] == b"[" and text[end : end + 1] == b"]" and is_plain[some].all():
            lists.append((start, end + 1, array("q", numbers[some].tobytes())))
    return lists
