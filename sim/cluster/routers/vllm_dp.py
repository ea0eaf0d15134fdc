"""vLLM's own balancing among the ranks of data parallelism (specification, section 17.1)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from kvtwin.sim.cluster.coordinator import Coordinator
from kvtwin.sim.cluster.load import Load
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.errors import WorkloadError

_Each = TypeVar("_Each")

_PRESSURE = 6.0
"""Weight of waiting requests, times the cache's usage above one half."""


NODES = ("round-robin", "random")
"""How somebody outside of vLLM chooses a node."""


@dataclass
class VllmDataParallel(Router):
    """API servers in front of the ranks. Each knows its own requests at once, and everything else from the coordinator.

    A request meets an API server by the kernel's choice: drawn at random. With one of them nothing is. Each node has
    API servers of its own, which balance its ranks only; who is outside of vLLM chooses the node.
    """

    name = "vllm-dp"
    serves_api = True
    seed: int = field(default=0, kw_only=True, metadata={"common": True})
    api_server_count: int | None = field(default=None, kw_only=True, metadata={"common": True})
    """On each node. None: as many as it has ranks, vLLM's default."""
    ranks_per_node: int | None = field(default=None, kw_only=True, metadata={"common": True})
    """None: all are balanced together (internal). 1: none are (external). Else those of a node (hybrid)."""
    nodes: str = "round-robin"
    """How somebody outside chooses the node, where there are several."""

    def begin(self, view: View) -> None:
        if self.nodes not in NODES:
            raise ValueError(f"nodes: expected {' or '.join(NODES)}, got {self.nodes!r}")
        num_ranks = self._ranks_of_a_node = self.ranks_per_node or view.num_replicas
        if view.num_replicas % num_ranks:
            raise ValueError(f"nodes of {num_ranks} ranks: {view.num_replicas} ranks do not fill them")
        count = self.api_server_count or num_ranks
        self._random = Random(self.seed)
        self._coordinator = Coordinator(view.num_replicas, steps_together=view.steps_together)
        self._front_ends = [
            [FrontEnd(num_ranks, count, index, first_rank) for index in range(count)]
            for first_rank in range(0, view.num_replicas, num_ranks)
        ]
        """Of each node."""
        self._front_end_of: dict[RoutedRequest, FrontEnd] = {}
        self._num_sent = self._num_publications = 0
        view.report_loads(self._coordinator.receive)

    def choose(self, request: RoutedRequest, view: View) -> int:
        record, num_ranks = request.record, self._ranks_of_a_node
        if record.data_parallel_rank is not None and record.data_parallel_rank >= num_ranks:
            expected = f"expected one of 0 to {num_ranks - 1}"
            raise WorkloadError(record.source, f"data_parallel_rank: {expected}, got {record.data_parallel_rank}")
        published = self._coordinator.advance_to(view.now_ns)
        if self._coordinator.num_publications != self._num_publications:
            self._num_publications = self._coordinator.num_publications
            for node in self._front_ends:
                for each in node:
                    each.take(published)
        front_end = self._one_of(self._node())
        self._front_end_of[request] = front_end
        return front_end.choose(record.data_parallel_rank)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        front_end = self._front_end_of.pop(request, None)
        if front_end:  # else it was refused, and nobody chose
            front_end.ended(replica)

    def _node(self) -> list[FrontEnd]:
        """The API servers of the node that the next request is sent to."""
        if self.nodes == "random":
            return self._one_of(self._front_ends)
        self._num_sent += 1
        return self._front_ends[(self._num_sent - 1) % len(self._front_ends)]

    def _one_of(self, several: Sequence[_Each]) -> _Each:
        return several[self._random.randrange(len(several)) if len(several) > 1 else 0]


class FrontEnd:
    """One API server: chooses the engine with the lowest score, and looks at them from another one on each time.

    It balances ``num_engines`` engines, of which the first has the rank ``first_rank``.

    The score of an engine is the greater of its load when that was last published, with what was sent from here
    since, and of the requests in flight from here, times the number of API servers. Waiting requests count more where
    more than half of the cache is in use.
    """

    def __init__(self, num_engines: int, num_front_ends: int, index: int, first_rank: int = 0) -> None:
        self.first_rank = first_rank
        self.in_flight: Counter[int] = Counter()
        """Unfinished requests of this API server, by engine."""
        self.loads: list[list[float]] = [[0, 0, 0.0] for _ in range(num_engines)]
        """Waiting and running requests and usage of each engine."""
        self._num_front_ends = num_front_ends
        self._first = num_engines * index // num_front_ends

    def take(self, published: Sequence[Load]) -> None:
        """The coordinator published the load of all engines; what was added here is forgotten."""
        self.loads = [list(load) for load in published[self.first_rank : self.first_rank + len(self.loads)]]

    def choose(self, engine: int | None = None) -> int:
        """The rank of the next request, which may ask for an engine of these."""
        engine = self._best() if engine is None else engine
        self.in_flight[engine] += 1
        return self.first_rank + engine

    def ended(self, rank: int) -> None:
        """A request that was sent to ``rank`` from here has ended."""
        self.in_flight[rank - self.first_rank] -= 1

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
