"""From the events of a run's steps: when each request was delivered tokens."""

from __future__ import annotations

from kvtwin.experiments.records.event_file import read_events
from kvtwin.experiments.records.reader import Run
from kvtwin.sim.recording import NEVER


def inter_token_latencies_ns(run: Run) -> list[list[int]]:
    """Per row of ``requests.parquet``, the pauses between deliveries. UserError: the run has no events.

    Several tokens delivered at once are one delivery, as for a client that reads a stream.
    """
    requests = run.requests
    latencies: list[list[int]] = [[] for _ in requests["request_id"]]
    rows_of: dict[str, list[int]] = {}  # an id may come again once it is free
    for row, request in enumerate(requests["request_id"]):
        if requests["first_scheduled_ns"][row] != NEVER:
            rows_of.setdefault(request, []).append(row)
    latest_ns: dict[str, int] = {}
    end_ns = iter(run.steps["end_ns"].tolist())
    for batch in read_events(run, ("scheduled", "output_tokens", "finished")):
        for scheduled, outputs, finished in zip(*batch.values(), strict=True):
            for request in finished:
                if latest_ns.pop(request, None) is not None:
                    rows_of[request].pop(0)
            now_ns = next(end_ns)
            for request, num_tokens in zip(scheduled, outputs, strict=True):
                if num_tokens and request in rows_of:
                    if request in latest_ns:
                        latencies[rows_of[request][0]].append(now_ns - latest_ns[request])
                    latest_ns[request] = now_ns
    return latencies
