"""Tables among lines of text: plain where the output is piped, as wide as they need; in style on a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_ANY_WIDTH = 100_000
"""Columns of a page on which no table has to be made narrower."""

_GAP = 2
"""Columns of the terminal between two of a table's."""

_LEAST_WORDS = 12
"""Columns that words have even where the numbers leave none."""

_LEAST_KEY = 30
"""Columns that the words have which say what a row is about."""


@dataclass(frozen=True)
class Table:
    """Texts in rows.

    Where a terminal is too narrow, headings and words are wrapped, and columns that still have no room follow below, in
    a table of their own. Numbers are never cut.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: Container[int] = (0,)
    """The columns of words; the others hold numbers, which end below each other."""
    num_keys: int = 1
    """The first columns, which say what a row is about."""
    page_columns: int = _ANY_WIDTH
    """Into how many columns it shall fit where it is no terminal that says so."""

    def in_parts(self, width: int) -> list[Table]:
        """Tables that fit into ``width`` with as many of the columns as do, each with the keys."""
        keys, others = range(self.num_keys), range(self.num_keys, len(self.headings))
        parts, chosen = [], list(keys)
        for index in others:
            if len(chosen) > len(keys) and self._width([*chosen, index], self._least) > width:
                parts.append(chosen)
                chosen = list(keys)
            chosen.append(index)
        return [self._of(columns) for columns in (*parts, chosen)]

    def drawn(self, width: int) -> RichTable:
        """As it is printed; wider than ``width`` only if its numbers are."""
        from rich.table import Table as RichTable
        from rich.text import Text

        every = range(len(self.headings))
        headings = [[heading] for heading in self.headings]
        widths = [self._most(index) for index in every]
        can_be_less = {index for index in every if widths[index] > self._least(index)}
        while can_be_less and self._width(every, widths.__getitem__) > width:
            index = max(can_be_less - set(self._words()) or can_be_less, key=widths.__getitem__)
            if index in self.left:
                widths[index] -= 1
            else:
                headings[index] = _in_lines(self.headings[index], widths[index] - 1)
                widths[index] = max(self._width_of_cells(index), *map(len, headings[index]))
            if widths[index] == self._least(index):
                can_be_less.remove(index)
        made = RichTable(box=None, pad_edge=False, show_header=any(self.headings), header_style="bold")
        for index, lines in enumerate(headings):
            text = Text("\n" * (max(map(len, headings)) - len(lines)) + "\n".join(lines))
            if index in self.left:
                made.add_column(text, overflow="fold", min_width=widths[index], max_width=widths[index])
            else:
                made.add_column(text, justify="right", no_wrap=True, min_width=widths[index])
        for row in self.rows:
            made.add_row(*map(Text, row))
        return made

    @property
    def least_width(self) -> int:
        """Of what holds its numbers."""
        return self._width(range(len(self.headings)), self._least)

    def _words(self) -> list[int]:
        """The columns of words, which get narrower only where headings in lines do not help."""
        return [index for index in range(len(self.headings)) if index in self.left]

    def _of(self, columns: Sequence[int]) -> Table:
        """Some of its columns."""
        left = [new for new, old in enumerate(columns) if old in self.left]
        rows = tuple(tuple(row[index] for index in columns) for row in self.rows)
        return Table(tuple(self.headings[index] for index in columns), rows, left, self.num_keys, self.page_columns)

    def _width(self, columns: Sequence[int], width_of: Callable[[int], int]) -> int:
        return sum(map(width_of, columns)) + _GAP * (len(columns) - 1)

    def _most(self, index: int) -> int:
        return max(len(self.headings[index]), self._width_of_cells(index))

    def _least(self, index: int) -> int:
        if index in self.left:
            return min(_LEAST_KEY if index < self.num_keys else _LEAST_WORDS, self._most(index))
        return max(self._width_of_cells(index), *map(len, _in_lines(self.headings[index], 1)))

    def _width_of_cells(self, index: int) -> int:
        from rich.cells import cell_len

        return max((cell_len(row[index]) for row in self.rows), default=0)


Part: TypeAlias = "str | Table"
"""A line, or a table."""


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Container[int] = (0,),
    *,
    num_keys: int = 1,
    page_columns: int = _ANY_WIDTH,
) -> Table:
    """A table of texts. ``left`` are the columns of words. Without any heading there is no such row."""
    return Table(tuple(headings), tuple(map(tuple, rows)), left, num_keys, page_columns)


def facts_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and what is to be said of each."""
    return table(("", ""), rows, left=(0, 1))


def show(*parts: Part) -> None:
    """Print lines and tables."""
    for part in parts:
        if isinstance(part, str):
            print(part)
        elif sys.stdout and sys.stdout.isatty():
            _print_to_terminal(part)
        else:
            print(as_text(part))


def as_text(*parts: Part) -> str:
    """Lines and tables without any style, without a line end after the last."""
    from rich.console import Console

    lines = []
    for part in parts:
        if isinstance(part, str):
            lines.append(part)
        else:
            console = Console(file=StringIO(), width=_ANY_WIDTH, color_system=None)
            with console.capture() as captured:
                console.print(part.drawn(part.page_columns))
            lines += [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(lines)


def _print_to_terminal(table: Table) -> None:
    """rich looks at NO_COLOR and TERM itself."""
    from rich.console import Console

    console = Console()
    for number, part in enumerate(table.in_parts(console.width)):
        if number:
            console.print()
        Console(width=max(console.width, part.least_width)).print(part.drawn(console.width))


def _in_lines(heading: str, width: int) -> list[str]:
    """A heading of several words, or a name's parts, in lines of the ``width`` or of the longest part."""
    parts = re.findall(r"[^\s/_-]+[\s/_-]*|^[\s/_-]+", heading)
    width = max([width, *(len(part.rstrip()) for part in parts)])
    lines = [""]
    for part in parts:
        if lines[-1] and len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]
