"""A workload: the requests of files, checked, counted and handed out in order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvtwin.workloads.clock import check_one_clock, clock_doubt, epoch_origin_ns
from kvtwin.workloads.columns import Integers, NotPlainError, RecordColumns
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.bad_lines import BadLines
from kvtwin.workloads.formats.json_rows import LAST_NS, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.plausibility import Extremes
from kvtwin.workloads.request_record import RequestRecord


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The requests of one file or several, in order of arrival; those that arrive together keep the order of the file.

    Iterating reads the files again, each time from the start, unless it is :meth:`held`. Where rows are
    sorted few records are held at a time; else as many as lie between a row's place in the file and its place in time.
    Files of plain rows are read as columns (:class:`RecordColumns`), for whom that is enough without an object each.
    ``num_unsorted`` counts the rows that arrive earlier than a row before them. ``warnings`` are sentences
    for the user. Where sessions have no start (``has_starts`` is false), all start at 0 and come one after the
    other, as in the file.
    """

    path: Path
    """What the workload is called: a file, or what several are named by."""
    paths: tuple[Path, ...]
    """Files, in the order in which they are read."""
    reader: Reader
    num_requests: int
    num_unsorted: int
    first_arrival_ns: int
    last_arrival_ns: int
    has_starts: bool = True
    warnings: tuple[str, ...] = ()
    _origin_ns: int = field(default=0, repr=False)
    _is_plain: bool = field(default=False, repr=False)
    _turns: tuple[RequestRecord, ...] = field(default=(), repr=False, compare=False)
    _ranks: NDArray[np.int64] | None = field(default=None, repr=False, compare=False)
    _held: tuple[RequestRecord, ...] | None = field(default=None, repr=False, compare=False)

    @property
    def format_name(self) -> str:
        return self.reader.name

    def __len__(self) -> int:
        return self.num_requests

    @property
    def turns(self) -> Iterable[RequestRecord]:
        """The requests, where only sessions, waits and arrivals matter: without what is known of prompts and outputs.

        Kept of files whose sessions have no start, which must be looked at before the first request can be sent.
        """
        return self._turns or self

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
        if self._is_plain:
            records = chain.from_iterable(columns.records() for columns in self._columns())
        else:
            records = _read(self.paths, self.reader)
            if self._origin_ns:
                records = _from(self._origin_ns, records)
        return records if self._ranks is None else reordered(records, self._ranks)

    def columns(self) -> Iterator[RecordColumns] | None:
        """What iterating yields, as columns; None where they cannot hold it, or the rows are not sorted."""
        return self._columns() if self._is_plain and self._ranks is None else None

    def _columns(self) -> Iterator[RecordColumns]:
        try:
            for columns in self.reader.columns(Rows(self.paths)):
                yield replace(columns, arrival_ns=columns.arrival_ns - self._origin_ns) if self._origin_ns else columns
        except NotPlainError:
            raise WorkloadError(str(self.path), "has changed since it was read first") from None

    @classmethod
    def of(
        cls,
        path: Path,
        reader: Reader,
        paths: tuple[Path, ...] | None = None,
        on_row: Callable[[], object] = lambda: None,
    ) -> Workload:
        """Read ``paths``, or ``path``, once with ``reader``, so that every bad row is found before anything is
        simulated; ``on_row`` is called at each.

        Raises `WorkloadError` on a bad row, when rows count time from different origins, and when there is no request.
        """
        paths = (path,) if paths is None else paths
        is_plain, turns = True, list[RequestRecord]()
        try:
            rows, extremes = Rows(paths, reader.skip_bad_lines), Extremes()
            times_ns = _arrivals_of_columns_ns(reader.columns(rows), extremes)
        except NotPlainError:
            is_plain = False
            rows, extremes = Rows(paths, reader.skip_bad_lines, on_row), Extremes()
            times_ns = np.fromiter(_arrivals_ns(reader.read(rows), rows, extremes, turns), dtype=np.int64)
        if not len(times_ns):
            found = "".join(f"; {sentence}" for sentence in rows.sentences())
            raise WorkloadError(str(path), f"expected at least one request, found none{found}")
        if (odd := check_one_clock(times_ns)) is not None:
            raise WorkloadError(_source(paths, reader, odd[0]), odd[1])
        first_ns, last_ns = int(times_ns.min()), int(times_ns.max())
        origin_ns = first_ns if reader.wall_clock else epoch_origin_ns(first_ns)
        num_unsorted, ranks = 0, None
        if rows.has_starts:
            num_unsorted = int(np.count_nonzero(times_ns < np.maximum.accumulate(times_ns)))
        if num_unsorted:
            ranks = np.empty(len(times_ns), dtype=np.int64)
            ranks[np.argsort(times_ns, kind="stable")] = np.arange(len(times_ns))
        warnings = rows.sentences()
        if origin_ns and not reader.wall_clock:
            warnings.append("arrivals are dates: they count from the first one")
        for doubt in (reader.doubt(len(times_ns), last_ns - first_ns), clock_doubt(times_ns)):
            if doubt is not None:
                warnings.append(doubt)
        return cls(
            path=path,
            paths=paths,
            reader=reader,
            num_requests=len(times_ns),
            num_unsorted=num_unsorted,
            first_arrival_ns=first_ns - origin_ns,
            last_arrival_ns=last_ns - origin_ns,
            has_starts=rows.has_starts,
            warnings=(*warnings, *extremes.sentences(last_ns - origin_ns)),
            _origin_ns=origin_ns,
            _is_plain=is_plain,
            _turns=tuple(turns) if len(turns) == len(times_ns) else (),
            _ranks=ranks,
        )


def _read(paths: tuple[Path, ...], reader: Reader) -> Iterator[RequestRecord]:
    """The requests again, those left out that were left out at first."""
    rows = Rows(paths, reader.skip_bad_lines)
    records = reader.read(rows)
    if not reader.skip_bad_lines:
        return records
    return (record for record, _ in _in_order(records, rows.bad_lines))


def _from(origin_ns: int, records: Iterator[RequestRecord]) -> Iterator[RequestRecord]:
    for record in records:
        record.arrival_ns -= origin_ns
        yield record


def _arrivals_of_columns_ns(parts: Iterator[RecordColumns], extremes: Extremes) -> Integers:
    arrivals_ns = [np.zeros(0, dtype=np.int64)]
    for columns in parts:
        extremes.add_columns(columns)
        arrivals_ns.append(columns.arrival_ns)
    return np.concatenate(arrivals_ns)


def _arrivals_ns(
    records: Iterator[RequestRecord], rows: Rows, extremes: Extremes, turns: list[RequestRecord]
) -> Iterator[int]:
    for record, arrival_ns in _in_order(records, rows.bad_lines):
        extremes.add(record)
        if not rows.has_starts:
            turns.append(
                replace(record, token_ids=None, hash_ids=None, hash_id_ends=None, output_token_ids=None, images=())
            )
        yield arrival_ns


def _in_order(records: Iterator[RequestRecord], bad_lines: BadLines) -> Iterator[tuple[RequestRecord, int]]:
    """Each record with its arrival; a bad line where one waits for a request that does not come before it."""
    arrivals_ns: dict[str, int] = {}
    for record in records:
        with bad_lines:
            for predecessor in record.after:
                name = predecessor.request_id
                if arrivals_ns.get(name, LAST_NS) > record.arrival_ns:
                    raise WorkloadError(
                        record.source, f"after: expected a turn that arrives earlier, got {shown(name)}"
                    )
            if record.session is not None:
                arrivals_ns[record.request_id] = record.arrival_ns
            yield record, record.arrival_ns


def _source(paths: tuple[Path, ...], reader: Reader, index: int) -> str:
    """Where the request of this number was read."""
    return next(record.source for number, record in enumerate(_read(paths, reader)) if number == index)


def reordered(records: Iterator[RequestRecord], ranks: NDArray[np.int64]) -> Iterator[RequestRecord]:
    """Yield the ``i``-th of ``records`` as number ``ranks[i]``, holding back those whose turn has not come."""
    held: dict[int, RequestRecord] = {}
    next_rank = 0
    for record, rank in zip(records, map(int, ranks), strict=True):
        held[rank] = record
        while next_rank in held:
            yield held.pop(next_rank)
            next_rank += 1
