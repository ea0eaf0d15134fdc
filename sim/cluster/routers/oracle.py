"""What the best knowledge of the caches could give."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.view import View


@dataclass
class Oracle(Router):
    """The replica with most of the prompt in its cache at this instant, of equals the one with fewest requests.

    No router can know that: it shows what the others miss. It is greedy, and so no bound in the strict sense: it sees
    every cache, but no request to come.
    """

    name = "oracle"

    def choose(self, request: RoutedRequest, view: View) -> int:
        cached = view.cached_now(request)
        return min(range(view.num_replicas), key=lambda replica: (-cached[replica], view.in_flight[replica]))
