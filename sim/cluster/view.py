"""What a router can see of its replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cache_events import CacheEvents
from kvtwin.sim.cluster.load import LoadReporter, Metrics, Report
from kvtwin.sim.cluster.progress import FirstTokens
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.serving import ServerSimulation


class View:
    """What a router can see: requests that it sent and that have not ended, and what it asked for before the run.

    ``in_flight`` has the number of such requests of each replica. All else is late: metrics as they were last scraped,
    caches as their events told, loads as they were reported. Only :meth:`cached_now` looks into the caches, for the
    router that shows what the others could gain.
    """

    def __init__(self, clock: Clock, servers: Sequence[ServerSimulation], event_lag_ns: int = 0) -> None:
        """``event_lag_ns``: after the end of a step, until its KV events are seen."""
        self._clock = clock
        self._servers = servers
        self._event_lag_ns = event_lag_ns
        self.num_replicas = len(servers)
        self.in_flight = [0] * len(servers)

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return self._clock.now_ns

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, for a router that compares prompts block by block. ValueError: replicas differ in that."""
        sizes = {server.scheduler.config.alignment_tokens for server in self._servers}
        if len(sizes) > 1:
            raise ValueError("needs replicas with equal --block-size")
        return sizes.pop()

    @property
    def num_blocks(self) -> list[int]:
        """Blocks of each replica, as servers tell routers when they start."""
        return [server.scheduler.config.num_blocks for server in self._servers]

    @property
    def steps_together(self) -> bool:
        """Whether replicas wait for each other in every step."""
        return any(server.steps_together for server in self._servers)

    def report_loads(self, report: Report) -> None:
        """From now on call ``report`` when the loop of an engine turns, if its counts changed.

        Counts are those of waiting and of running requests; usage alone is nothing to tell (specification, section
        16.3).
        """
        for replica, server in enumerate(self._servers):
            server.observers.append(LoadReporter(replica, server, report))

    def scrape(self, interval_ns: int) -> list[Metrics]:
        """The metrics of each replica, which are read every ``interval_ns``."""
        found = [Metrics(server, interval_ns) for server in self._servers]
        for server, metrics in zip(self._servers, found, strict=True):
            server.observers.append(metrics)
        return found

    def follow_caches(self) -> list[CacheEvents]:
        """What of each replica's cache is known from its KV events. ValueError: replicas differ in ``block_tokens``."""
        assert self.block_tokens
        return [CacheEvents(server, self._event_lag_ns) for server in self._servers]

    def tell_first_tokens(self, function: Callable[[str, int], None]) -> None:
        """From now on call ``function(request_id, replica)`` when a replica delivers a request's first token."""
        for replica, server in enumerate(self._servers):
            server.observers.append(FirstTokens(replica, function))

    def cached_now(self, request: RoutedRequest) -> list[int]:
        """Tokens of the prompt that each replica has cached at this instant."""
        return request.cached_tokens
