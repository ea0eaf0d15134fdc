"""How far a command has come, on stderr: a bar on a terminal, else a plain line every ten seconds; nothing at first."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from kvtwin.workloads.counts import number_of

Each = TypeVar("Each")

BAR_AFTER_S = 5
LINE_EVERY_S = 10.0

_BAR = "{desc}: {n_fmt} [{elapsed}]"
_BAR_OF = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"

_is_quiet = False


def be_quiet(is_quiet: bool) -> None:
    """Show nothing (``--quiet``), or what is shown usually."""
    global _is_quiet
    _is_quiet = is_quiet


def progress(words: str, unit: str, total: int | None = None, *, initial: int = 0, show: bool = True) -> Any:
    """A context with ``n``, ``total`` and ``update(number)``: ``initial`` of ``total`` are done already."""
    if show and not _is_quiet and sys.stderr is not None and not sys.stderr.isatty():
        return _Lines(words, unit, total, initial)
    from tqdm import tqdm  # read only where it is shown: it takes a twentieth of a start

    return tqdm(
        desc=f"{words}, {unit}",
        bar_format=_BAR if total is None else _BAR_OF,
        total=total,
        initial=initial,
        delay=BAR_AFTER_S,
        mininterval=0.5,
        leave=False,
        file=sys.stderr,
        disable=_is_quiet or not show,
    )


def followed(each: Iterable[Each], words: str, unit: str) -> Iterator[Each]:
    """Each of a sequence, with progress."""
    with progress(words, unit, total=len(each) if hasattr(each, "__len__") else None) as bar:  # type: ignore[arg-type]
        for one in each:
            yield one
            bar.update(1)


class _Lines:
    """For logs and pipes, where a bar would leave a line for every change."""

    def __init__(self, words: str, unit: str, total: int | None, initial: int) -> None:
        self.n, self.total = initial, total
        self._words, self._unit = words, unit
        self._started_s = time.monotonic()
        self._next_s = self._started_s + LINE_EVERY_S

    def update(self, number: int = 1) -> None:
        """So many more are done."""
        self.n += number
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + LINE_EVERY_S
            one = self._unit.removesuffix("s")
            done = number_of(self.n, one) if self.total is None else f"{self.n:,} of {number_of(self.total, one)}"
            print(f"kvtwin: {self._words}: {done}, {now_s - self._started_s:.0f} s", file=sys.stderr, flush=True)

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass
