"""A prediction beside the measurement that it predicts, as plain data: two runs of the same workload."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.runs.latencies import SERVED
from kvtwin.experiments.runs.reader import Columns, Run
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

DECISIONS = {
    "num_gpu_blocks": "Blocks",
    "prefix_cache_hits": "Hit tokens",
    "num_evictions": "Evictions",
    "num_preemptions": "Preemptions",
    "steps": "Steps",
}
"""Keys of the summary that say what the engine decided, and words for them."""

LATENCIES = ("ttft", "tpot", "e2el")
_PERCENTS = {"median": 50, "p90": 90, "p99": 99}

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


def validation_facts(measured: Run, predicted: Run, step_times: Pairs) -> dict[str, Any]:
    """Everything that is compared, the decisions first. Errors are relative to what was measured; None: no such.

    ``step_times`` are of the measured steps: how long each took, and how long the model says that it takes.
    """
    latencies = paired_latencies(measured, predicted)
    return {
        "decisions": {name: _decision(measured, predicted, name) for name in DECISIONS},
        "latencies": {name: _latency_facts(pairs) for name, pairs in latencies.items()},
        "step_time": _step_time_facts(step_times),
    }


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


def _decision(measured: Run, predicted: Run, name: str) -> dict[str, Any]:
    one, two = measured.summary[name], predicted.summary[name]
    return {"measured": one, "predicted": two, "difference": None if one is None or two is None else two - one}


def _latency_facts(pairs: Pairs) -> dict[str, Any]:
    facts: dict[str, Any] = {"requests": len(pairs.measured)}
    for name, percent in _PERCENTS.items():
        one, two = (_percentile(values, percent) for values in (pairs.measured, pairs.predicted))
        facts[name] = {
            "measured_ms": None if one is None else one / MILLISECOND_NS,
            "predicted_ms": None if two is None else two / MILLISECOND_NS,
            "error": two / one - 1 if one and two is not None else None,
        }
    sizes = np.abs(pairs.errors)
    return facts | {"request_error": {"median": _percentile(sizes, 50), "p90": _percentile(sizes, 90)}}


def _step_time_facts(times: Pairs) -> dict[str, Any]:
    errors = times.errors
    return {
        "steps": len(times.measured),
        "measured_s": int(times.measured.sum()) / SECOND_NS,
        "predicted_s": int(times.predicted.sum()) / SECOND_NS,
        "median_error": _percentile(np.abs(errors), 50),
        "p90_error": _percentile(np.abs(errors), 90),
        "median_signed_error": _percentile(errors, 50),
    }


def _percentile(values: NDArray[Any], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if len(values) else None


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
