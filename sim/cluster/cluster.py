"""Several servers on one clock, behind a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from kvtwin.sim.clients import Clients
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.recording import ClusterRecorder, Routing
from kvtwin.sim.cluster.router import RoutedRequest, Router
from kvtwin.sim.cluster.view import View
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord

Sent = Callable[[int, RequestRecord], None]
"""Hears of every record that is sent: to which replica, and the record as one that arrives then and waits for none."""


class Cluster:
    """Servers, the router before them, and the clients that send a workload.

    Every record is sent to exactly one server, which takes it at the same instant. The servers know nothing of each
    other: each one decides as if it were alone with the records that it gets.
    """

    def __init__(
        self,
        clock: Clock,
        servers: Sequence[ServerSimulation],
        router: Router,
        *,
        max_concurrency: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        on_sent: Sent | None = None,
    ) -> None:
        """``servers`` are on ``clock`` and have not started. ``on_progress`` gets the number of finished records."""
        self._clock = clock
        self._servers = servers
        self._router = router
        self._view = View(clock, servers)
        self._clients = Clients(clock, self._route, max_concurrency)
        self._on_progress = on_progress
        self._on_sent = on_sent
        self._routing = Routing()
        self._open: dict[int, RoutedRequest] = {}
        """Requests in flight, by the identity of their records."""
        self._peak_requests = 0
        self._num_done = 0
        for replica, server in enumerate(servers):
            server.on_done = partial(self._done, replica)

    def run(self, workload: Iterable[RequestRecord]) -> ClusterRecorder:
        """Serve ``workload``, whose records come in order of ``arrival_ns``; return what was recorded.

        Raises WorkloadError when a request's id belongs to one that the same server is still serving.
        """
        self._router.begin(self._view)
        self._clients.start(workload)
        for server in self._servers:
            server.start()
        self._clock.environment.run()
        recorders = [server.close() for server in self._servers]
        num_unsent = sum(1 for _ in self._clients.unsent())
        return ClusterRecorder(recorders, self._routing, self._peak_requests, num_unsent)

    def _route(self, record: RequestRecord) -> None:
        servers, request = self._servers, RoutedRequest(record)
        if self._router.serves_api and servers[0].refusal(record):
            replica = 0  # where it is counted: no engine gets it
        else:
            replica = self._router.choose(request, self._view)
        if not 0 <= replica < len(servers):
            raise WorkloadError(record.source, f"replica {replica}: expected one of 0 to {len(servers) - 1}")
        server = servers[replica]
        self._open[id(record)] = request
        self._view.in_flight[replica] += 1
        if not server.refusal(record):
            self._peak_requests = max(self._peak_requests, len(self._open))
            cached = [each.scheduler.kv_cache.num_cached_tokens(each.unsent(record)) for each in servers]
            self._routing.add(replica, cached)
        if self._on_sent:
            self._on_sent(replica, replace(record, arrival_ns=self._clock.now_ns, think_time_ns=None, after=()))
        server.serve(record)

    def _done(self, replica: int, record: RequestRecord) -> None:
        self._view.in_flight[replica] -= 1
        self._router.ended(self._open.pop(id(record)), replica)
        self._num_done += 1
        if self._on_progress:
            self._on_progress(self._num_done)
        self._clients.request_done(record)
