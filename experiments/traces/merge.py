"""Several traces as one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import merge as merged

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.new import check_new
from kvtwin.experiments.options.trace_tools import MergeOptions
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.experiments.traces.new_file import write_new
from kvtwin.workloads.formats.native import write_workload
from kvtwin.workloads.request_record import RequestRecord


def merge(options: MergeOptions) -> int:
    """Write all requests in order of arrival. UserError: too few traces, one without start times, or a taken name."""
    check_new(options.out)
    if len(options.traces) < 2:
        raise UserError("TRACE: expected at least two files to merge, none of them twice")
    workloads = [open_trace(trace, options) for trace in options.traces]
    for workload in workloads:
        warn_of(workload)
        if not workload.has_starts:
            raise UserError(f"{workload.path}: has no start times, so that nobody knows when its requests come")
    names: dict[tuple[int, int], int] = {}
    parts = [_of(number, workload, names) for number, workload in enumerate(workloads)]
    records = merged(*parts, key=lambda record: record.arrival_ns)
    words = f"kvtwin trace merge: {', '.join(options.traces)}"
    return write_new(options.out, records, lambda followed: write_workload(options.out, followed, words))


def _of(number: int, workload: Iterable[RequestRecord], names: dict[tuple[int, int], int]) -> Iterator[RequestRecord]:
    """The records of a trace, told apart from those of others."""
    for record in workload:
        ids = record.hash_ids
        yield replace(
            record,
            request_id=f"{number}/{record.request_id}",
            session=None if record.session is None else f"{number}/{record.session}",
            after=tuple(replace(of, request_id=f"{number}/{of.request_id}") for of in record.after),
            hash_ids=None if ids is None else [names.setdefault((number, name), len(names)) for name in ids],
        )
