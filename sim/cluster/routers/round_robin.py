"""One replica after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Knows, Router
from kvtwin.sim.cluster.view import View


@dataclass
class RoundRobin(Router):
    """Each request goes to the replica behind the latest one's."""

    name = "round-robin"
    knows = Knows.EARLIER_REQUESTS
    _next: int = field(default=0, init=False)

    def choose(self, request: RoutedRequest, view: View) -> int:
        replica, self._next = self._next, (self._next + 1) % view.num_replicas
        return replica
