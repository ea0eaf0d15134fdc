"""A prediction beside the measurement that it predicts, as plain data: two runs of the same workload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.paired_latencies import Pairs, paired_latencies
from kvtwin.experiments.runs.spread import Spread
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

DECISIONS = {
    "num_gpu_blocks": "Blocks",
    "prefix_cache_hits": "Hit tokens",
    "num_evictions": "Evictions",
    "num_preemptions": "Preemptions",
    "steps": "Steps",
}
"""Keys of the summary that say what the engine decided, and words for them."""

OF_REPLICA = {"num_prompts": "Requests"} | {
    name: words for name, words in DECISIONS.items() if name != "num_gpu_blocks"
}
"""The same of a replica, and what came to it: the router may have sent it elsewhere at other times."""

_PERCENTS = {"median": 50, "p90": 90, "p99": 99}


def validation_facts(measured: Run, predicted: Run, step_times: Pairs) -> dict[str, Any]:
    """Everything that is compared, the decisions first. Errors are relative to what was measured; None: no such.

    ``step_times`` are of the measured steps: how long each took, and how long the model says that it takes.
    """
    latencies = paired_latencies(measured, predicted)
    replicas = [
        {name: _decision(*both, name) for name in OF_REPLICA}
        for both in zip(measured.replicas, predicted.replicas, strict=True)
    ]
    return {
        "decisions": {name: _decision(measured, predicted, name) for name in DECISIONS},
        **({"replicas": replicas} if replicas else {}),
        "latencies": {name: _latency_facts(pairs) for name, pairs in latencies.items()},
        "step_time": _step_time_facts(step_times),
    }


def spread_facts(measured: Mapping[str, Any], spread: Spread) -> dict[str, Any]:
    """What was measured, and whether it lies where the simulation would be with other step times."""
    return {
        name: {
            "measured": measured[name],
            "low": bounds[0],
            "high": bounds[1],
            "inside": bool(bounds[0] <= measured[name] <= bounds[1]),
        }
        for name, bounds in spread.items()
        if bounds is not None and measured[name] is not None
    }


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
