"""The replica with the fewest requests."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router, least
from kvtwin.sim.cluster.view import View


@dataclass
class LeastLoaded(Router):
    """Each request goes to the replica with the fewest requests in flight, the first of several."""

    name = "least-loaded"

    def choose(self, request: RoutedRequest, view: View) -> int:
        return least(view.in_flight)
