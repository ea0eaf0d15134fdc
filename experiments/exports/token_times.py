"""From the events of a run's steps: when each request was delivered tokens."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.records.event_file import read_events
from kvtwin.experiments.records.reader import Run
from kvtwin.sim.recording import NEVER


def inter_token_latencies_ns(run: Run) -> list[list[int]]:
    """Per row of ``requests.parquet``, the pauses between deliveries. UserError: the run has no events.

    Several tokens delivered at once are one delivery, as for a client that reads a stream.
    """
    return [[later - earlier for earlier, later in pairwise(times)] for times in _deliveries_ns(run)]


def pauses_between_deliveries(run: Run) -> tuple[NDArray[Any], NDArray[Any]]:
    """Of all requests together: when each pause ended, and how long it was, in ns. UserError: the run has no events."""
    pairs = [pair for times in _deliveries_ns(run) for pair in pairwise(times)]
    earlier, later = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return later, later - earlier


def output_tokens_of_steps(run: Run) -> NDArray[Any]:
    """How many output tokens each step delivered. UserError: the run has no events."""
    return np.array([sum(row) for batch in read_events(run, ("output_tokens",)) for row in batch["output_tokens"]])


def _deliveries_ns(run: Run) -> list[list[int]]:
    """Per row of ``requests.parquet``, when it was delivered tokens."""
    requests = run.requests
    deliveries: list[list[int]] = [[] for _ in requests["request_id"]]
    rows_of: dict[str, list[int]] = {}  # an id may come again once it is free
    for row, request in enumerate(requests["request_id"]):
        if requests["first_scheduled_ns"][row] != NEVER:
            rows_of.setdefault(request, []).append(row)
    end_ns = iter(run.steps["end_ns"].tolist())
    for batch in read_events(run, ("scheduled", "output_tokens", "finished")):
        for scheduled, outputs, finished in zip(*batch.values(), strict=True):
            for request in finished:
                if request in rows_of and deliveries[rows_of[request][0]]:
                    rows_of[request].pop(0)
                    if not rows_of[request]:
                        del rows_of[request]
            now_ns = next(end_ns)
            for request, num_tokens in zip(scheduled, outputs, strict=True):
                if num_tokens and request in rows_of:
                    deliveries[rows_of[request][0]].append(now_ns)
    return deliveries
