"""Where a router that looks at nothing but requests sends them, without any server."""

from __future__ import annotations

from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Knows, Router
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.request_record import RequestRecord


class Destinations:
    """Asks ``router`` for each record, in the order in which they are sent."""

    def __init__(self, router: Router, num_replicas: int) -> None:
        """ValueError: the router looks at servers, or a setting of it does not fit."""
        if router.knows is Knows.SERVERS:
            raise ValueError("looks at what becomes of requests at the replicas")
        self._router = router
        self._view = View(Clock(), ())
        self._view.num_replicas = num_replicas
        router.begin(self._view)

    def of(self, record: RequestRecord) -> int:
        """The replica that the next record is sent to."""
        return self._router.choose(RoutedRequest(record, []), self._view)
