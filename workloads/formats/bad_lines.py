"""Lines that cannot be read: they end the reading, or are left out and counted."""

from __future__ import annotations

from types import TracebackType

from kvtwin.workloads.counts import number_of
from kvtwin.workloads.errors import WorkloadError

_MOST_SHOWN = 10


class BadLines:
    """A context around whatever reads one row: an error in it is raised, or with ``skip`` kept, and the row left out.

    What a row yields it must yield whole: a reader makes all its requests first.
    """

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.number = 0
        self.first: list[WorkloadError] = []
        """Those that are shown."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not (self.skip and isinstance(error, WorkloadError)):
            return False
        self.number += 1
        if len(self.first) < _MOST_SHOWN:
            self.first.append(error)
        return True

    def sentences(self) -> list[str]:
        """What to tell the user: how many lines were left out, and why the first of them."""
        if not self.number:
            return []
        more = f" (the first {_MOST_SHOWN})" if self.number > _MOST_SHOWN else ""
        return [f"left out {number_of(self.number, 'bad line')}{more}: {'; '.join(map(str, self.first))}"]
