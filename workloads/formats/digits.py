"""Decimal digits in bytes, read as integers many at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvtwin.workloads.columns import Integers

MOST_DIGITS = 16
"""Of a number that is read here; 10^16 fits easily into 64 bits."""

_ROOM = b"\0" * 8
"""Before the text, so that eight bytes end at every place of it."""


class Digits:
    """A text in which numbers lie. Their ``starts`` and ``ends`` (exclusive) count bytes from its first one."""

    def __init__(self, text: bytes) -> None:
        self._text = _ROOM + text
        self.bytes = np.frombuffer(self._text, np.uint8)[len(_ROOM) :]

    def runs(self) -> tuple[Integers, Integers]:
        """Where digits follow one another: starts and ends."""
        is_digit = np.zeros(len(self.bytes) + 2, dtype=bool)
        np.less(self.bytes - np.uint8(ord("0")), 10, out=is_digit[1:-1])
        edges = np.flatnonzero(is_digit[1:] != is_digit[:-1])
        return edges[::2], edges[1::2]

    def are_digits(self, starts: Integers, ends: Integers) -> NDArray[np.bool_]:
        """Of each place, whether it holds 1 to 16 digits and nothing else."""
        lengths = ends - starts
        right = self._are_digits(ends, lengths)
        (long,) = np.nonzero(lengths > 8)
        if len(long):
            right[long] &= self._are_digits(ends[long] - 8, lengths[long] - 8)
        return right & (lengths > 0) & (lengths <= MOST_DIGITS)

    def are_plain(self, starts: Integers, ends: Integers) -> NDArray[np.bool_]:
        """Of each number, whether it has at most 16 digits, and no needless 0 in front."""
        lengths = ends - starts
        return (lengths <= MOST_DIGITS) & ((lengths == 1) | (self.bytes[starts] != ord("0")))

    def integers(self, starts: Integers, ends: Integers) -> Integers:
        """The numbers at these places, where nothing but digits lies; of more than 16 digits the last."""
        lengths = ends - starts
        numbers = self._last_eight(ends, lengths)
        (long,) = np.nonzero(lengths > 8)
        if len(long):
            numbers[long] += 10**8 * self._last_eight(ends[long] - 8, lengths[long] - 8)
        return numbers

    def _words(self, ends: Integers, lengths: Integers) -> NDArray[np.uint64]:
        """Up to eight digits before each end as the bytes of a number, the first digit the lowest; 0 before them.

        What lies at an empty place is not looked at, but is a byte at least.
        """
        words: NDArray[np.uint64] = np.ndarray((len(self._text) - 7,), "<u8", self._text, strides=(1,))[ends]
        others = (8 - np.clip(lengths, 1, 8)).view(np.uint64) << np.uint64(3)
        words ^= np.uint64(0x3030303030303030)  # the digit 0
        words >>= others
        words <<= others
        return words

    def _are_digits(self, ends: Integers, lengths: Integers) -> NDArray[np.bool_]:
        words = self._words(ends, lengths)
        high = np.uint64(0xF0F0F0F0F0F0F0F0)
        return (words & high == 0) & ((words + np.uint64(0x0606060606060606)) & high == 0)

    def _last_eight(self, ends: Integers, lengths: Integers) -> Integers:
        """The number that the last eight digits make, of each; several digits at a time in one word.

        After D. Lemire, "Quickly parsing eight digits" (2018): neighbours are added up in pairs, then fours, then all.
        """
        words = self._words(ends, lengths)
        words *= np.uint64(10 * 2**8 + 1)
        words >>= np.uint64(8)
        words &= np.uint64(0x00FF00FF00FF00FF)
        words *= np.uint64(100 * 2**16 + 1)
        words >>= np.uint64(16)
        words &= np.uint64(0x0000FFFF0000FFFF)
        words *= np.uint64(10_000 * 2**32 + 1)
        words >>= np.uint64(32)
        return words.astype(np.int64)
