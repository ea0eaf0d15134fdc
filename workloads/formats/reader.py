"""What a reader of a workload format is.

To add a format, write one file with a `Reader` and add it to `kvtwin.workloads.formats.registry.FORMATS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kvtwin.workloads.columns import NotPlainError, RecordColumns
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord


@dataclass(frozen=True)
class Reader(ABC):
    """Reads one format. Readers are small dataclasses; their fields are the format's settings."""

    name: ClassVar[str]
    """The name under which a user forces the format."""

    wall_clock: ClassVar[bool] = False
    """Whether the file's times are dates, so that a workload must count them from its first arrival."""

    skip_bad_lines: bool = field(default=False, kw_only=True)
    """Leave out what cannot be read, instead of refusing the file; every format can."""

    @property
    @abstractmethod
    def first_row_names(self) -> frozenset[str]:
        """The keys or columns by which the file's first row is recognised."""

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        """Whether a file that starts with ``first_rows`` has this format."""
        return bool(first_rows) and self.first_row_names <= first_rows[0].values.keys()

    @abstractmethod
    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        """Yield the requests of ``rows`` in their order, holding one at a time.

        Each row is read in the context ``rows.bad_lines``, where `kvtwin.workloads.errors.WorkloadError`, one line with
        file, line and field, tells what is wrong with it.
        """

    def columns(self, rows: Rows) -> Iterator[RecordColumns]:
        """What :meth:`read` yields, as columns; NotPlainError, at once or later, unless all rows are right and plain.

        A format that has long files of plain rows reads them so, many times as fast.
        """
        raise NotPlainError

    def doubt(self, num_requests: int, span_ns: int) -> str | None:
        """Why these settings look wrong for ``num_requests`` over ``span_ns``; None when they do not."""
        return None
