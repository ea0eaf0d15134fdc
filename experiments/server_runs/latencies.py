"""Latencies of two records of the same requests, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kvtwin.experiments.server_runs.served import ServedRequest
from kvtwin.workloads.time_units import SECOND_NS

STATISTICS = {
    "mean": np.mean,
    "p50": lambda values: np.quantile(values, 0.5),
    "p90": lambda values: np.quantile(values, 0.9),
    "p99": lambda values: np.quantile(values, 0.99),
}


class Comparison(NamedTuple):
    """One figure of two records."""

    name: str
    """``mean TTFT``, ``p90 TPOT``, ..., or ``makespan``."""
    unit: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """The simulation's, relative to the measurement; positive where it is too long."""
        return self.simulated / self.measured - 1 if self.measured else 0.0


def latencies(served: Sequence[ServedRequest]) -> Mapping[str, np.ndarray]:
    """TTFT and E2E in s, TPOT in ms, of each request.

    TTFT runs from the arrival to the first token, E2E to the last one. TPOT is the mean gap between the tokens of a
    request; those with one token have none.
    """
    table = np.array([request[2:] for request in served], dtype=float)
    output_tokens, arrival_ns, first_ns, last_ns = table.T
    several = output_tokens > 1
    return {
        "TTFT": (first_ns - arrival_ns) / SECOND_NS,
        "TPOT": ((last_ns - first_ns)[several] / (output_tokens[several] - 1)) / 1e6,
        "E2E": (last_ns - arrival_ns) / SECOND_NS,
    }


UNITS = {"TTFT": "s", "TPOT": "ms", "E2E": "s"}


def makespan_s(served: Sequence[ServedRequest]) -> float:
    """From the first arrival to the last token."""
    span_ns = max(request.last_token_ns for request in served) - min(request.arrival_ns for request in served)
    return span_ns / SECOND_NS


def compare_latencies(measured: Sequence[ServedRequest], simulated: Sequence[ServedRequest]) -> list[Comparison]:
    """Each statistic of TTFT, TPOT and E2E, and the makespan."""
    ours, theirs = latencies(simulated), latencies(measured)
    rows = [
        Comparison(f"{statistic} {name}", UNITS[name], float(of(theirs[name])), float(of(ours[name])))
        for name in UNITS
        for statistic, of in STATISTICS.items()
    ]
    return [*rows, Comparison("makespan", "s", makespan_s(measured), makespan_s(simulated))]
