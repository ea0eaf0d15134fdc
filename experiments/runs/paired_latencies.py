"""Latencies of the requests that two runs served, pair by pair."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.records.reader import Columns, Run
from kvtwin.experiments.runs.latencies import SERVED

LATENCIES = ("ttft", "tpot", "e2el")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """Times of the same things, measured and predicted, in ns."""

    measured: NDArray[Any]
    predicted: NDArray[Any]

    @property
    def errors(self) -> Floats:
        """``predicted`` over ``measured``, less 1, where something was measured: above 0, too much is predicted."""
        some = self.measured > 0
        return self.predicted[some] / self.measured[some] - 1.0


def paired_latencies(measured: Run, predicted: Run) -> dict[str, Pairs]:
    """Latencies in ns of the requests that both runs served, by name.

    Requests are paired by id; of several with one id, in order of arrival.
    """
    one, two = _served(measured), _served(predicted)
    at = {name: index for index, name in enumerate(_names(two))}
    rows = [(index, at[name]) for index, name in enumerate(_names(one)) if name in at]
    indices = np.array(rows, dtype=np.int64).reshape(-1, 2)
    pairs = {}
    for name in LATENCIES:
        values = _latency(one, name)[indices[:, 0]], _latency(two, name)[indices[:, 1]]
        there = np.isfinite(values[0]) & np.isfinite(values[1])
        pairs[name] = Pairs(values[0][there], values[1][there])
    return pairs


def _served(run: Run) -> Columns:
    """The served requests of a run, in order of arrival."""
    requests = run.requests
    served = np.isin(requests["finish_reason"].astype(str), SERVED)
    order = np.flatnonzero(served)[np.argsort(requests["arrival_ns"][served], kind="stable")]
    return {name: column[order] for name, column in requests.items()}


def _names(requests: Columns) -> list[tuple[str, int]]:
    """Each request's id, and how many before it have the same."""
    seen: Counter[str] = Counter()
    names = []
    for request_id in requests["request_id"]:
        names.append((str(request_id), seen[request_id]))
        seen[request_id] += 1
    return names


def _latency(requests: Columns, name: str) -> Floats:
    """A latency of each request in ns; NaN where it has none: TPOT takes several output tokens, as vLLM has it."""
    arrival, first, finish = (requests[f"{column}_ns"] for column in ("arrival", "first_token", "finish"))
    if name == "tpot":
        gaps = requests["output_tokens"] - 1
        return np.divide(finish - first, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)
    end = {"ttft": first, "e2el": finish}[name]
    return (end - arrival).astype(float)
