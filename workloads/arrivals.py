"""Random arrivals, as ``vllm bench serve`` draws them: gaps between requests follow a gamma distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from kvtwin.workloads.time_units import SECOND_NS


def check_rate(request_rate: float, burstiness: float) -> None:
    """Raise ValueError unless both are above 0; infinity is allowed."""
    if not request_rate > 0:
        raise ValueError(f"request rate: expected more than 0 requests/s, got {request_rate}")
    if not burstiness > 0:
        raise ValueError(f"burstiness: expected more than 0, got {burstiness}")


def draw_gap_s(rng: np.random.Generator, request_rate: float, burstiness: float) -> float:
    """Seconds until the next request: gamma with shape ``burstiness`` and mean ``1 / request_rate``.

    Burstiness 1 is a Poisson process, less is burstier, infinity is a constant gap. An infinite rate has no
    gaps.
    """
    if math.isinf(request_rate):
        return 0.0
    if math.isinf(burstiness):
        return 1.0 / request_rate
    return float(rng.gamma(burstiness, 1.0 / (request_rate * burstiness)))


def arrivals_ns(rng: np.random.Generator, request_rate: float, burstiness: float) -> Iterator[int]:
    """Yield arrival times without end; the first comes one gap after 0."""
    time_ns = 0
    while True:
        time_ns += round(draw_gap_s(rng, request_rate, burstiness) * SECOND_NS)
        yield time_ns
