"""What a reader of a workload format is.

To add a format, write one file with a `Reader` and add it to `kvtwin.workloads.formats.registry.FORMATS`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvtwin.workloads.request_record import RequestRecord


@dataclass(frozen=True)
class Reader(ABC):
    """Reads one format. Readers are small dataclasses; their fields are the format's settings."""

    name: ClassVar[str]
    """The name under which a user forces the format."""

    wall_clock: ClassVar[bool] = False
    """Whether the file's times are dates, so that a workload must count them from its first arrival."""

    has_session_starts: ClassVar[bool] = True
    """Whether the file says when its sessions start. Else all start at 0, and are read one after the other."""

    @property
    @abstractmethod
    def first_line_names(self) -> frozenset[str]:
        """The JSON keys or CSV columns by which the file's first line is recognised."""

    def recognises(self, first_lines: list[str]) -> bool:
        """Whether a file that starts with ``first_lines`` (blank lines left out) has this format."""
        return bool(first_lines) and self.first_line_names <= names_in(first_lines[0])

    @abstractmethod
    def read(self, path: Path) -> Iterator[RequestRecord]:
        """Yield the requests of ``path`` in file order, holding one at a time.

        Raises `kvtwin.workloads.errors.WorkloadError`, one line with file, line and field, at the first bad row.
        """

    def doubt(self, num_requests: int, span_ns: int) -> str | None:
        """Why these settings look wrong for ``num_requests`` over ``span_ns``; None when they do not."""
        return None


def names_in(line: str) -> frozenset[str]:
    """The keys of a line that is a JSON object, else its comma-separated columns."""
    if line.startswith(("{", "[")):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            return frozenset()
        return frozenset(values) if isinstance(values, dict) else frozenset()
    return frozenset(column.strip() for column in line.split(","))
