"""A run as Chrome's trace event JSON, which ui.perfetto.dev and chrome://tracing open.

A track per request (queued, prefill chunk by chunk, decode, preempted) and counters of the cache and the queues. Times
are microseconds of simulated time. Format: "Trace Event Format", Google; complete (X), counter (C) and metadata (M)
events are used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.request_phases import request_phases

_SERVER, _REQUESTS = 1, 2
"""Process ids: of the counters and of the requests' tracks."""


def export(run: Run, file: IO[str]) -> None:
    """Write the trace. UserError: the run has no events."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = ""
    for event in _events(run):
        file.write(separator + json.dumps(event))
        separator = ",\n"
    file.write("\n]}\n")


def _events(run: Run) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _SERVER, 0, run.title)
    yield _name("process_name", _REQUESTS, 0, "requests")
    tracks: dict[str, int] = {}
    for phase in request_phases(run):
        if phase.request not in tracks:
            tracks[phase.request] = len(tracks) + 1
            yield _name("thread_name", _REQUESTS, tracks[phase.request], phase.request)
        yield {
            "ph": "X",
            "name": phase.name,
            "cat": "request",
            "ts": phase.start_ns / 1000,
            "dur": (phase.end_ns - phase.start_ns) / 1000,
            "pid": _REQUESTS,
            "tid": tracks[phase.request],
            "args": phase.figures,
        }
    steps, usable_blocks = run.steps, run.num_blocks - 1
    counters = {
        "KV cache usage (%)": (100 * (1 - steps["free_blocks"] / usable_blocks)).round(3),
        "free blocks": steps["free_blocks"],
        "running requests": steps["running"],
        "waiting requests": steps["waiting"],
    }
    times = steps["scheduled_ns"].tolist()
    for name, column in counters.items():
        before = None
        for time_ns, value in zip(times, column.tolist(), strict=True):
            if value != before:
                yield {"ph": "C", "name": name, "ts": time_ns / 1000, "pid": _SERVER, "args": {"value": value}}
                before = value


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}
