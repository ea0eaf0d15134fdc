"""Shaping the load of a workload, with the settings of ``vllm bench serve``.

Each function takes records in order of arrival and yields changed copies in the same order. What a later
turn of a session waits for, the answer before it and the think time, is not touched: only its nominal
arrival is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np

from kvtwin.workloads.arrivals import check_rate, draw_gap_s
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS


def first_requests(records: Iterable[RequestRecord], num_prompts: int) -> Iterator[RequestRecord]:
    """The first ``num_prompts`` records."""
    return islice(records, num_prompts)


def set_samples(records: Iterable[RequestRecord], n: int) -> Iterator[RequestRecord]:
    """Every request asks for ``n`` samples of its prompt."""
    return (replace(record, n=n) for record in records)


def scale_rate(records: Iterable[RequestRecord], rate_scale: float) -> Iterator[RequestRecord]:
    """Requests arrive ``rate_scale`` times as fast: 2 halves every arrival time.

    The scale counts as the decimal number it is written as, the division is one of integers (rounded down).
    Raises ValueError unless the scale is above 0 and finite.
    """
    if not 0 < rate_scale < float("inf"):
        raise ValueError(f"rate scale: expected a number above 0, got {rate_scale}")
    scale = Fraction(str(rate_scale))
    return (replace(record, arrival_ns=record.arrival_ns * scale.denominator // scale.numerator) for record in records)


def set_request_rate(
    records: Iterable[RequestRecord],
    num_requests: int,
    request_rate: float,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Iterator[RequestRecord]:
    """The first ``num_requests`` records with new arrival times, drawn at ``request_rate`` requests per second.

    As in ``vllm bench serve``: gaps are gamma with shape ``burstiness``, and are then stretched so that the
    last request arrives at exactly ``num_requests / request_rate`` seconds. An infinite rate lets all
    arrive at 0. Raises ValueError unless rate and burstiness are above 0.
    """
    check_rate(request_rate, burstiness)
    rng = np.random.default_rng(seed)
    ends_s = np.cumsum([draw_gap_s(rng, request_rate, burstiness) for _ in range(num_requests)])
    if num_requests and ends_s[-1] > 0:
        ends_s *= num_requests / request_rate / ends_s[-1]
    times_ns = np.rint(ends_s * SECOND_NS).astype(np.int64)
    return (replace(record, arrival_ns=int(time_ns)) for time_ns, record in zip(times_ns, records, strict=False))
