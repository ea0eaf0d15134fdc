"""The better of two."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.view import View


@dataclass
class PowerOfTwo(Router):
    """Of two different replicas drawn at random the one with fewer requests in flight, the first drawn of equals.

    M. Mitzenmacher, The power of two choices in randomized load balancing, 2001.
    """

    name = "power-of-two"
    seed: int = field(default=0, kw_only=True, metadata={"common": True})

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def choose(self, request: RoutedRequest, view: View) -> int:
        drawn = self._random.sample(range(view.num_replicas), min(2, view.num_replicas))
        return min(drawn, key=view.in_flight.__getitem__)
