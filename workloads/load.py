"""The load: what is sent to a server, and when."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvtwin.workloads.load_shaping import first_requests, scale_rate, set_request_rate, set_samples
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.sessions import PlayedSessions
from kvtwin.workloads.workload import Workload


@dataclass(frozen=True)
class Load:
    """What is sent: a workload with its arrival times shaped. Each iteration starts anew."""

    workload: Workload | PlayedSessions
    num_requests: int
    rate_scale: float
    request_rate: float | None
    session_rate: float | None
    burstiness: float
    max_concurrency: int | None
    seed: int
    parallel_samples: int | None = None
    """Samples of every prompt; None: what the trace says."""

    @property
    def ignores_arrivals(self) -> bool:
        """Whether clients send as soon as they may."""
        asked_for = self.request_rate is not None or self.session_rate is not None or self.rate_scale != 1.0
        return self.max_concurrency is not None and not asked_for

    def __iter__(self) -> Iterator[RequestRecord]:
        records = first_requests(self.workload, self.num_requests)
        if self.parallel_samples is not None:
            records = set_samples(records, self.parallel_samples)
        if self.ignores_arrivals:
            return set_request_rate(records, self.num_requests, math.inf)
        if self.request_rate is not None:
            return set_request_rate(records, self.num_requests, self.request_rate, self.burstiness, self.seed)
        if self.rate_scale != 1.0:
            return scale_rate(records, self.rate_scale)
        return records
