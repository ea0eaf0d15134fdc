"""Requests that a program made: a workload without a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.native import checked_copy
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.workload import Workload

_NAME = "records"


@dataclass(frozen=True, eq=False)
class InMemoryReader(Reader):
    """Hands out the records that it holds, whatever the path."""

    name: ClassVar[str] = _NAME

    records: tuple[RequestRecord, ...]

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset()

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        return False

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        yield from self.records


def workload_of(records: Iterable[RequestRecord]) -> Workload:
    """The workload of ``records``, which are copied. WorkloadError: one could not stand in a file, or there is none."""
    copies = (checked_copy(record, f"record {number}") for number, record in enumerate(records, start=1))
    return Workload.of(Path(_NAME), InMemoryReader(tuple(copies)))
