"""A run as Chrome's trace event JSON, which ui.perfetto.dev and chrome://tracing open.

A track per request (queued, prefill chunk by chunk, decode, preempted) and counters of the cache and the queues. Times
are microseconds of simulated time. Format: "Trace Event Format", Google; complete (X), counter (C) and metadata (M)
events are used. Perfetto's importer asks for more than the document, which is why

* a track's number is no other's, whatever its process: a name finds its track by the number alone;
* characters are written as they are, but a backslash as its number: some versions refuse the file at an escaped pair of
  surrogates, others at a text that ends with a backslash;
* times lie a quarter of a nanosecond late: some versions cut what they multiplied by 1,000, and a phase that began a
  nanosecond early would lie in the one before. Durations may lose a nanosecond;
* an empty name counts as an error;
* a phase without a length is left out: it would lie in the one after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.request_phases import request_phases

_SERVER, _REQUESTS = 1, 2
"""Process ids, of the counters and of the requests, and the numbers of the processes' own tracks."""


def export(run: Run, file: IO[str]) -> None:
    """Write the trace. UserError: the run has no events."""
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    separator = ""
    for event in _events(run):
        file.write(separator + json.dumps(event, ensure_ascii=False).replace(r"\\", r"\u005c"))
        separator = ",\n"
    file.write("\n]}\n")


def _events(run: Run) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _SERVER, _SERVER, run.title)
    yield _name("process_name", _REQUESTS, _REQUESTS, "requests")
    tracks: dict[str, int] = {}
    for phase in request_phases(run):
        if phase.end_ns == phase.start_ns:
            continue
        if phase.request not in tracks:
            tracks[phase.request] = _REQUESTS + 1 + len(tracks)
            yield _name("thread_name", _REQUESTS, tracks[phase.request], phase.request or '""')
        yield {
            "ph": "X",
            "name": phase.name,
            "cat": "request",
            "ts": _us(phase.start_ns),
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
                yield {
                    "ph": "C",
                    "name": name,
                    "ts": _us(time_ns),
                    "pid": _SERVER,
                    "tid": _SERVER,
                    "args": {"value": value},
                }
                before = value


def _us(time_ns: int) -> float:
    """Microseconds: they are ``time_ns`` again, rounded or cut."""
    return (time_ns + 0.25) / 1000


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}
