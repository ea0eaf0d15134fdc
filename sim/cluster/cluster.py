"""Several servers on one clock, behind a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter_ns

from kvtwin.sim.clients import Clients
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cached_tokens import CachedTokens
from kvtwin.sim.cluster.presence import Presence
from kvtwin.sim.cluster.questions import Questions
from kvtwin.sim.cluster.recording import ClusterRecorder, Routing
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Knows, Router
from kvtwin.sim.cluster.view import View
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord

Sent = Callable[[int, RequestRecord, RequestRecord], None]
"""Hears of every record that is sent: to which replica, as one that arrives then and waits for none, and the record."""


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
        event_lag_ns: int = 0,
        max_concurrency: int | None = None,
        on_progress: Callable[[int], None] | None = None,
        on_sent: Sent | None = None,
    ) -> None:
        """``servers`` are on ``clock`` and have not started. ``on_progress`` gets the number of finished records.

        ``event_lag_ns`` is what KV events need to the router. ValueError: a setting of the router does not fit.
        """
        self._clock = clock
        self._servers = servers
        self._router = router
        self._view = View(clock, servers, event_lag_ns)
        self._cached_tokens = CachedTokens(servers)
        looks_ahead = router.knows is not Knows.SERVERS
        self._clients = Clients(clock, self._route, max_concurrency, self if looks_ahead else None)
        self._on_progress = on_progress
        self._on_sent = on_sent
        self._routing = Routing()
        self._questions = Questions(servers, self._routing)
        self._has_asked = False
        self._chosen: dict[int, int] = {}
        """By the identity of a record that is not sent yet, the replica that was chosen for it."""
        self._open: dict[int, RoutedRequest] = {}
        """Requests in flight, by the identity of the records that their servers got."""
        self._waits_for_places = max_concurrency is not None
        self._num_open_turns = 0
        """Requests in flight that belong to sessions: another turn may wait for their answer."""
        self._presence = Presence()
        self._num_done = 0
        self.router_ns = 0
        """Real time that the router took for its choices."""
        for replica, server in enumerate(servers):
            server.on_done = partial(self._done, replica)
            server.ends_matter = self._ends_matter
        router.begin(self._view)

    def run(self, workload: Iterable[RequestRecord]) -> ClusterRecorder:
        """Serve ``workload``, whose records come in order of ``arrival_ns``; return what was recorded.

        Raises WorkloadError when a request's id belongs to one that the same server is still serving, and what an
        executor raises: :meth:`close` completes the record then.
        """
        for server in self._servers:
            server.start()
        self._clients.start(workload)
        self._clock.run()
        return self.close()

    def close(self) -> ClusterRecorder:
        """End the record where the run stands; for whoever caught what ended it early."""
        self._settle()
        recorders = [server.close() for server in self._servers]
        num_unsent = sum(1 for _ in self._clients.unsent())
        return ClusterRecorder(recorders, self._routing, self._presence.settle(), num_unsent)

    def expect(self, record: RequestRecord) -> bool:
        """See :class:`~kvtwin.sim.clients.TakesAhead`: for routers that see nothing of the servers."""
        if record.data_parallel_rank is not None or record.lora_name:  # servers number their adapters themselves
            return False
        if not all(server.looks_ahead for server in self._servers):
            return False
        self._settle()
        request = RoutedRequest(record, [])
        replica = self._chosen[id(record)] = self._choose(request)
        runs = self._servers[replica].expected_keys(record)
        if runs is None:
            return False  # the router is not asked again
        del self._chosen[id(record)]
        self._open[id(record)] = request
        self._view.in_flight[replica] += 1
        self._presence.come_at(record.arrival_ns)
        self._questions.add(replica, record, runs)
        if self._on_sent:
            self._on_sent(replica, record, record)
        return True

    def expect_no_more(self) -> None:
        """See :class:`~kvtwin.sim.clients.TakesAhead`."""
        self._has_asked = True
        self._questions.ask()
        for server in self._servers:
            server.expect_no_more()

    def _choose(self, request: RoutedRequest) -> int:
        started_ns = perf_counter_ns()
        replica = self._router.choose(request, self._view)
        self.router_ns += perf_counter_ns() - started_ns
        if not 0 <= replica < len(self._servers):
            expected = f"expected one of 0 to {len(self._servers) - 1}"
            raise WorkloadError(request.record.source, f"replica {replica}: {expected}")
        return replica

    def _settle(self) -> None:
        """What was expected before has come, all of it."""
        if self._has_asked:
            self._has_asked = False
            self._questions.settle()
            self._presence.settle()

    def _route(self, record: RequestRecord) -> None:
        router, servers, now_ns = self._router, self._servers, self._clock.now_ns
        self._settle()
        if record.data_parallel_rank is not None and not router.serves_api:
            raise WorkloadError(record.source, "data_parallel_rank: only vLLM's own balancer reads it (vllm-dp)")
        if record.n > 1 and router.serves_api:
            raise WorkloadError(record.source, "n: vLLM spreads the samples of a prompt over its ranks; not modelled")
        cached = self._cached_tokens.of(record)
        request = RoutedRequest(record, cached)
        if router.serves_api and servers[0].refusal(record):
            replica = 0  # where it is counted: no engine gets it
        else:
            chosen = self._chosen.pop(id(record), None)
            replica = self._choose(request) if chosen is None else chosen
        sent = replace(record, arrival_ns=now_ns, think_time_ns=None, after=(), data_parallel_rank=None)
        self._open[id(sent)] = request
        self._presence.come()
        self._num_open_turns += record.session is not None
        self._view.in_flight[replica] += 1
        if not servers[replica].refusal(record):
            self._presence.note()
            self._routing.add(replica, cached)
        if self._on_sent:
            self._on_sent(replica, sent, record)
        servers[replica].serve(sent)

    def _ends_matter(self) -> bool:
        return self._waits_for_places or self._num_open_turns > 0

    def _done(self, replica: int, sent: RequestRecord) -> None:
        self._num_open_turns -= sent.session is not None
        self._view.in_flight[replica] -= 1
        self._presence.go(self._servers[replica].ended_ns)
        request = self._open.pop(id(sent))
        self._router.ended(request, replica)
        self._num_done += 1
        if self._on_progress:
            self._on_progress(self._num_done)
        self._clients.request_done(request.record)
