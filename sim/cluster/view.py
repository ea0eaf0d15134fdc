"""What a router can see of its replicas."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.sim.clock import Clock
from kvtwin.sim.serving import ServerSimulation


class View:
    """What a router can see: requests that it sent and that have not ended, and what it asked for before the run.

    ``in_flight`` has the number of such requests of each replica.
    """

    def __init__(self, clock: Clock, servers: Sequence[ServerSimulation]) -> None:
        self._clock = clock
        self._servers = servers
        self.num_replicas = len(servers)
        self.in_flight = [0] * len(servers)

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return self._clock.now_ns
