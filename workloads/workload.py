"""A workload: the requests of a file, checked, counted and handed out in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.json_rows import LAST_NS, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.request_record import RequestRecord


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The requests of one file, in order of arrival; requests that arrive together keep the order of the file.

    Iterating reads the file again, each time from its start, unless it is :meth:`held`. Of a file whose rows are
    sorted one record is held at a time; else as many as lie between a row's place in the file and its place in time.
    ``num_unsorted`` counts the rows that arrive earlier than a row before them. ``warnings`` are sentences
    for the user. Where sessions have no start (`Reader.has_session_starts`), all start at 0 and come one after the
    other, as in the file.
    """

    path: Path
    reader: Reader
    num_requests: int
    num_unsorted: int
    first_arrival_ns: int
    last_arrival_ns: int
    warnings: tuple[str, ...] = ()
    _origin_ns: int = field(default=0, repr=False)
    _ranks: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    _held: tuple[RequestRecord, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def format_name(self) -> str:
        return self.reader.name

    def __len__(self) -> int:
        return self.num_requests

    def held(self, most_ids: int) -> Workload:
        """The same workload, read once and held in memory; itself if its records hold more than ``most_ids`` ids."""
        held, num_ids = [], 0
        for record in self:
            held.append(record)
            num_ids += len(record.token_ids or ()) + len(record.hash_ids or ()) + len(record.output_token_ids or ())
            if num_ids > most_ids:
                return self
        return replace(self, _held=tuple(held))

    def __iter__(self) -> Iterator[RequestRecord]:
        if self._held is not None:
            return iter(self._held)
        records = self._from_origin() if self._origin_ns else self.reader.read(self.path)
        return records if self._ranks is None else reordered(records, self._ranks)

    def _from_origin(self) -> Iterator[RequestRecord]:
        for record in self.reader.read(self.path):
            record.arrival_ns -= self._origin_ns
            yield record

    @classmethod
    def of(cls, path: Path, reader: Reader) -> Workload:
        """Read ``path`` once with ``reader``, so that every bad row is found before anything is simulated.

        Raises `WorkloadError` on a bad row, or when there is none at all.
        """
        times_ns = np.fromiter(_arrivals_ns(reader.read(path)), dtype=np.int64)
        if not len(times_ns):
            raise WorkloadError(str(path), "expected at least one request, found none")
        num_unsorted = 0
        if reader.has_session_starts:
            num_unsorted = int(np.count_nonzero(times_ns < np.maximum.accumulate(times_ns)))
        ranks = None
        if num_unsorted:
            ranks = np.empty(len(times_ns), dtype=np.int64)
            ranks[np.argsort(times_ns, kind="stable")] = np.arange(len(times_ns))
        first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
        origin_ns = first_ns if reader.wall_clock else 0
        doubt = reader.doubt(len(times_ns), last_ns - first_ns)
        return cls(
            path=path,
            reader=reader,
            num_requests=len(times_ns),
            num_unsorted=num_unsorted,
            first_arrival_ns=first_ns - origin_ns,
            last_arrival_ns=last_ns - origin_ns,
            warnings=() if doubt is None else (doubt,),
            _origin_ns=origin_ns,
            _ranks=ranks,
        )


def _arrivals_ns(records: Iterator[RequestRecord]) -> Iterator[int]:
    """The arrival of each record; raises `WorkloadError` where one waits for a request that does not come before it."""
    arrivals_ns: dict[str, int] = {}
    for record in records:
        for predecessor in record.after:
            name = predecessor.request_id
            if arrivals_ns.get(name, LAST_NS) > record.arrival_ns:
                raise WorkloadError(record.source, f"after: expected a turn that arrives earlier, got {shown(name)}")
        if record.session is not None:
            arrivals_ns[record.request_id] = record.arrival_ns
        yield record.arrival_ns


def reordered(records: Iterator[RequestRecord], ranks: NDArray[np.int64]) -> Iterator[RequestRecord]:
    """Yield the ``i``-th of ``records`` as number ``ranks[i]``, holding back those whose turn has not come."""
    held: dict[int, RequestRecord] = {}
    next_rank = 0
    for record, rank in zip(records, map(int, ranks), strict=True):
        held[rank] = record
        while next_rank in held:
            yield held.pop(next_rank)
            next_rank += 1
