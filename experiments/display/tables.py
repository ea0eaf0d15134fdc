"""Tables among lines of text: plain where the output is piped, as wide as they need; in style on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.table import Table

Part: TypeAlias = "str | Table"
"""A line, or a table."""

_ANY_WIDTH = 100_000
"""Columns of a page on which no table has to be made narrower."""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Container[int] = (0,)) -> Table:
    """A table of texts. ``left`` are the columns of words; the others hold numbers, which end below each other.

    Where a terminal is too narrow, words are wrapped and numbers never cut. Without any heading there is no such row.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, show_header=any(headings), header_style="bold")
    rows = list(rows)
    for index, (heading, *cells) in enumerate(zip(headings, *rows, strict=True)):
        if index in left:
            made.add_column(Text(heading), overflow="fold")
        else:
            width = max(map(cell_len, (heading, *cells)))
            made.add_column(Text(heading), justify="right", no_wrap=True, min_width=width)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


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
                console.print(part)
            lines += [line.rstrip() for line in captured.get().splitlines()]
    return "\n".join(lines)


def _print_to_terminal(part: Table) -> None:
    """rich looks at NO_COLOR and TERM itself."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    least = Measurement.get(console, console.options.update_width(_ANY_WIDTH), part).minimum
    Console(width=max(console.width, least)).print(part)
