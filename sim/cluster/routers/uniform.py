"""Any replica."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Knows, Router
from kvtwin.sim.cluster.view import View


@dataclass
class Uniform(Router):
    """Each request goes to a replica drawn at random, all equally likely."""

    name = "random"
    knows = Knows.EARLIER_REQUESTS
    seed: int = field(default=0, kw_only=True, metadata={"common": True})

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def choose(self, request: RoutedRequest, view: View) -> int:
        return self._random.randrange(view.num_replicas)
