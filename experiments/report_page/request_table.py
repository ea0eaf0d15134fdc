"""The requests of a run, and what each did when, as the page's script reads them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from kvtwin.experiments.records.event_file import has_events
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.request_phases import request_phases
from kvtwin.sim.recording import NEVER
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

COLUMNS = {
    "id": "request",
    "arrival": "arrival (s)",
    "queue": "queue (s)",
    "ttft": "TTFT (s)",
    "tpot": "TPOT (ms)",
    "e2e": "end to end (s)",
    "prompt": "prompt tokens",
    "hits": "hit tokens",
    "output": "output tokens",
    "preemptions": "preemptions",
    "end": "ended as",
}
"""Short names, for filters, with headings."""

PHASES = ("queued", "prefill", "decode", "preempted")


def request_table(run: Run) -> dict[str, Any]:
    """Rows in order of arrival, and of each its phases: kind, start and end in s, and what is to be said of it."""
    requests = run.requests
    order = np.argsort(requests["arrival_ns"], kind="stable")
    columns = {name: requests[name][order].tolist() for name in requests}
    rows = [_row(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    return {
        "columns": COLUMNS,
        "rows": rows,
        "phases": _phases(run, [row[0] for row in rows]) if has_events(run.path) else list(map(_told_phases, rows)),
        "phase_names": PHASES,
    }


def request_index(table: dict[str, Any]) -> dict[str, int]:
    """By id the row; of several with one id the first."""
    index: dict[str, int] = {}
    for number, row in enumerate(table["rows"]):
        index.setdefault(row[0], number)
    return index


def _row(request: dict[str, Any]) -> list[Any]:
    arrival, scheduled, first, finish = (
        request[name] for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns")
    )
    outputs = request["output_tokens"]
    return [
        request["request_id"],
        _seconds(arrival),
        _seconds(scheduled - arrival) if scheduled != NEVER else None,
        _seconds(first - arrival) if first != NEVER else None,
        round((finish - first) / (outputs - 1) / MILLISECOND_NS, 3) if first != NEVER and outputs > 1 else None,
        _seconds(finish - arrival) if finish != NEVER else None,
        request["prompt_tokens"],
        request["hit_tokens"],
        outputs,
        request["preemptions"],
        request["finish_reason"],
    ]


def _phases(run: Run, names: list[str]) -> list[list[Any]]:
    """From the run's events. An id that comes again has the phases of all its requests."""
    by_request: dict[str, list[Any]] = {}
    for phase in request_phases(run):
        told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in phase.figures.items() if count)
        entry = [PHASES.index(phase.name), _seconds(phase.start_ns), _seconds(phase.end_ns), told]
        by_request.setdefault(phase.request, []).append(entry)
    return [sorted(by_request.get(name, []), key=lambda entry: entry[1]) for name in names]


def _told_phases(row: list[Any]) -> list[Any]:
    """What a run without events tells: preemptions hide in the decode."""
    _, arrival, queue, ttft, _, e2e, *_ = row
    ends = [arrival] + [None if each is None else arrival + each for each in (queue, ttft, e2e)]
    return [
        [kind, start, round(end, 6), ""]
        for kind, (start, end) in enumerate(pairwise(ends))
        if start is not None and end is not None
    ]


def _seconds(ns: int) -> float:
    return round(ns / SECOND_NS, 6)
