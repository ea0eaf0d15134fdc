"""CSV files without quotes, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from kvtwin.workloads.columns import Integers, NotPlainError
from kvtwin.workloads.formats.digits import Digits
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.formats.text_lines import plain_lines
from kvtwin.workloads.time_units import SECOND_NS

_DATE = "0000-00-00 00:00:00"
_UTC = "+00:00"


def csv_columns(paths: Sequence[Path]) -> Iterator[tuple[Path, int, CsvColumns]]:
    """The rows of CSV files, many at a time: their file, how many rows came before them, and they.

    NotPlainError: it holds more than ASCII, or quotes; or a line has other columns than the first.
    """
    num_rows = 0
    for path in paths:
        names, line = None, 2
        for text in plain_lines(path):
            if b'"' in text or not text.isascii():
                raise NotPlainError
            if names is None:
                header, _, text = text.partition(b"\n")
                names = [name.strip() for name in header.decode().split(",")]
            columns = CsvColumns(text, names, line)
            yield path, num_rows, columns
            line += columns.num_rows
            num_rows += columns.num_rows


class CsvColumns:
    """Whole lines of a CSV file, the first of which is its ``line``. Methods read a column, or raise NotPlainError."""

    def __init__(self, text: bytes, names: list[str], line: int) -> None:
        self.names = names
        self.line = line
        self._digits = Digits(text)
        letters = self._digits.bytes
        ends = np.flatnonzero((letters == ord(",")) | (letters == ord("\n")))
        self.num_rows, more = divmod(len(ends), len(names))
        is_end = letters[ends] == ord("\n")
        if not len(ends) or more or is_end.sum() != self.num_rows or not is_end[len(names) - 1 :: len(names)].all():
            raise NotPlainError
        self._starts = np.concatenate(([0], ends[:-1] + 1)).reshape(self.num_rows, len(names))
        self._ends = ends.reshape(self.num_rows, len(names))

    def integers(self, name: str, minimum: int = 0) -> Integers:
        """The integers of a column, each at least ``minimum``."""
        numbers = self._integers(*self._places(name))
        if (numbers < minimum).any():
            raise NotPlainError
        return numbers

    def times_ns(self, name: str) -> Integers:
        """The seconds of a column, which may have up to nine decimals, in ns."""
        starts, ends = self._places(name)
        points = np.append(np.flatnonzero(self._digits.bytes == ord(".")), self._ends[-1, -1])
        points = np.minimum(points[np.searchsorted(points, starts)], ends)
        seconds = self._integers(starts, points)
        if seconds.max(initial=0) >= LAST_NS // SECOND_NS:
            raise NotPlainError
        return seconds * SECOND_NS + self._billionths(points, ends)

    def dates_ns(self, name: str) -> Integers:
        """The dates of a column, in UTC, as ns since 1970."""
        starts, ends = self._places(name)
        letters = self._digits.bytes
        if ((ends - starts) < len(_DATE)).any():
            raise NotPlainError
        for place, letter in enumerate(_DATE):
            if letter != "0" and (letters[starts + place] != ord(letter)).any():
                raise NotPlainError
        if self._end_with_utc(ends):
            ends = ends - len(_UTC)
        year, month, day, hour, minute, second = (
            self._integers(starts + place, starts + place + length)
            for place, length in ((0, 4), (5, 2), (8, 2), (11, 2), (14, 2), (17, 2))
        )
        months = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
        days = months.astype("M8[D]") + (day - 1)
        is_right = (days.astype("M8[M]") == months) & (day > 0) & (month > 0) & (month <= 12)
        if not (is_right & (hour < 24) & (minute < 60) & (second < 60) & (year >= 1970) & (year < 2262)).all():
            raise NotPlainError
        seconds = ((days.astype(np.int64) * 24 + hour) * 60 + minute) * 60 + second
        return seconds * SECOND_NS + self._billionths(starts + len(_DATE), ends)

    def _places(self, name: str) -> tuple[Integers, Integers]:
        if self.names.count(name) != 1:
            raise NotPlainError
        column = self.names.index(name)
        return self._starts[:, column], self._ends[:, column]

    def _integers(self, starts: Integers, ends: Integers) -> Integers:
        if not self._digits.are_digits(starts, ends).all():
            raise NotPlainError
        return self._digits.integers(starts, ends)

    def _billionths(self, points: Integers, ends: Integers) -> Integers:
        """What the decimals between a point and an end stand for, one to nine of them; 0 where there is no point."""
        lengths = ends - points - 1
        fractions = np.zeros(len(ends), dtype=np.int64)
        (has,) = np.nonzero(ends > points)
        if len(has):
            lengths = lengths[has]
            if (lengths > 9).any() or (self._digits.bytes[points[has]] != ord(".")).any():
                raise NotPlainError
            fractions[has] = self._integers(points[has] + 1, ends[has]) * 10 ** (9 - lengths)
        return fractions

    def _end_with_utc(self, ends: Integers) -> bool:
        letters = self._digits.bytes
        return all((letters[ends - len(_UTC) + place] == ord(letter)).all() for place, letter in enumerate(_UTC))
