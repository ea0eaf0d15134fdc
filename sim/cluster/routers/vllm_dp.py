"""vLLM's own balancing among the ranks of data parallelism (specification, section 17.1)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from kvtwin.sim.cluster.coordinator import Coordinator
from kvtwin.sim.cluster.load import Load
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.errors import WorkloadError

_PRESSURE = 6.0
"""Weight of waiting requests, times the cache's usage above one half."""


@dataclass
class VllmDataParallel(Router):
    """API servers in front of the ranks. Each knows its own requests at once, and everything else from the coordinator.

    A request meets an API server by the kernel's choice: drawn at random. With ``api_server_count`` 1 nothing is.
    """

    name = "vllm-dp"
    serves_api = True
    seed: int = field(default=0, kw_only=True, metadata={"common": True})
    api_server_count: int | None = field(default=None, kw_only=True, metadata={"common": True})
    """None: as many as ranks, vLLM's default."""

    def begin(self, view: View) -> None:
        count = self.api_server_count or view.num_replicas
        self._random = Random(self.seed)
        self._coordinator = Coordinator(view.num_replicas, steps_together=view.steps_together)
        self._front_ends = [FrontEnd(view.num_replicas, count, index) for index in range(count)]
        self._front_end_of: dict[RoutedRequest, FrontEnd] = {}
        self._num_publications = 0
        view.report_loads(self._coordinator.receive)

    def choose(self, request: RoutedRequest, view: View) -> int:
        record = request.record
        if record.data_parallel_rank is not None and record.data_parallel_rank >= view.num_replicas:
            expected = f"expected one of 0 to {view.num_replicas - 1}"
            raise WorkloadError(record.source, f"data_parallel_rank: {expected}, got {record.data_parallel_rank}")
        published = self._coordinator.advance_to(view.now_ns)
        if self._coordinator.num_publications != self._num_publications:
            self._num_publications = self._coordinator.num_publications
            for each in self._front_ends:
                each.take(published)
        count = len(self._front_ends)
        front_end = self._front_ends[self._random.randrange(count) if count > 1 else 0]
        self._front_end_of[request] = front_end
        return front_end.choose(record.data_parallel_rank)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        front_end = self._front_end_of.pop(request, None)
        if front_end:  # else it was refused, and nobody chose
            front_end.in_flight[replica] -= 1


class FrontEnd:
    """One API server: chooses the engine with the lowest score, and looks at them from another one on each time.

    The score of an engine is the greater of its load when that was last published, with what was sent from here
    since, and of the requests in flight from here, times the number of API servers. Waiting requests count more where
    more than half of the cache is in use.
    """

    def __init__(self, num_engines: int, num_front_ends: int, index: int) -> None:
        self.in_flight: Counter[int] = Counter()
        """Unfinished requests of this API server, by engine."""
        self.loads: list[list[float]] = [[0, 0, 0.0] for _ in range(num_engines)]
        """Waiting and running requests and usage of each engine."""
        self._num_front_ends = num_front_ends
        self._first = num_engines * index // num_front_ends

    def take(self, published: Sequence[Load]) -> None:
        """The coordinator published the load of all engines; what was added here is forgotten."""
        self.loads = [list(load) for load in published]

    def choose(self, rank: int | None = None) -> int:
        """The engine of the next request, which may ask for one."""
        engine = self._best() if rank is None else rank
        self.in_flight[engine] += 1
        return engine

    def _best(self) -> int:
        num_engines, best, lowest = len(self.loads), 0, float(sys.maxsize)
        for offset in range(num_engines):
            engine = (self._first + offset) % num_engines
            waiting, running, usage = self.loads[engine]
            score = max(self._num_front_ends * self.in_flight[engine], waiting + running)
            if waiting:
                score += waiting * _PRESSURE * max(0.0, usage - 0.5)
            if score < lowest:
                best, lowest = engine, score
        self.loads[best][0] += self._num_front_ends
        self._first = (self._first + 1) % num_engines
        return best
