"""One replica of several whose router does not look at them: simulated by itself, with what a run of all would note."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.cluster.recording import ClusterRecorder
from kvtwin.sim.cluster.routed_request import RoutedRequest
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.view import View
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.request_record import RequestRecord


class Event(NamedTuple):
    """A record was sent to the replica, or one ended there. Events of several replicas, in order, are those of all."""

    time_ns: int
    is_behind_outputs: bool
    """Whether something had ended at this instant before: what clients send by the clock comes first."""
    position: int
    """Of the record in the workload."""
    is_end: bool
    is_served: bool
    """Whether the front end took it."""
    is_at_once: bool
    """Whether it ended while it was sent: the engine rejected it."""

    @property
    def order(self) -> tuple[int, bool, bool, int, bool]:
        """What comes first of several replicas: at an instant whatever is sent, unless something has ended before."""
        ends_later = self.is_end and not self.is_at_once
        return self.time_ns, self.is_behind_outputs, ends_later, self.position, self.is_end


class Send(NamedTuple):
    """A record that is sent to some replica."""

    time_ns: int
    position: int
    replica: int


class OneOfSeveral(Cluster):
    """A cluster of one server, which serves its own part of a workload.

    Of what is sent to others it is asked how much of it is cached here at that instant, which a run of all notes.
    """

    def __init__(self, clock: Clock, server: ServerSimulation) -> None:
        super().__init__(clock, [server], _Only())
        self.events: list[Event] = []
        self.cached_tokens: list[int] = []
        """Of each send to others, in order, the tokens that were cached here; 0 where nobody asks."""
        self._server = server
        self._positions: dict[int, int] = {}
        """By the identity of records that have not been sent."""
        self._sent: dict[int, tuple[int, bool]] = {}
        """By the identity of records that have not ended, their positions, and whether they are served."""
        self._num_sending = 0
        self._latest_output_ns = -1

    def run_part(
        self, part: Iterable[tuple[int, RequestRecord]], to_others: Sequence[tuple[int, RequestRecord]]
    ) -> ClusterRecorder:
        """Serve ``part``, records with their positions; ``to_others`` are sent elsewhere at the given times."""
        self._ask(iter(to_others))
        return self.run(self._noted(part))

    def _noted(self, part: Iterable[tuple[int, RequestRecord]]) -> Iterator[RequestRecord]:
        for position, record in part:
            self._positions[id(record)] = position
            yield record

    def _ask(self, to_others: Iterator[tuple[int, RequestRecord]]) -> None:
        following = next(to_others, None)
        while following is not None and following[0] <= self._clock.now_ns:
            cached = self._server.scheduler.kv_cache.num_cached_tokens(self._server.unsent(following[1]))
            self.cached_tokens.append(cached)
            following = next(to_others, None)
        if following is not None:
            later = following
            self._clock.call_at(later[0], lambda _: self._ask(_preceded(later, to_others)))

    def _route(self, record: RequestRecord) -> None:
        position, is_served = self._positions.pop(id(record)), not self._server.refusal(record)
        self._sent[id(record)] = position, is_served
        self._note(position, is_served, is_end=False)
        self._num_sending += 1
        super()._route(record)
        self._num_sending -= 1

    def _done(self, replica: int, sent: RequestRecord) -> None:
        position, is_served = self._sent.pop(id(self._open[id(sent)].record))
        if not self._num_sending:
            self._latest_output_ns = self._clock.now_ns
        self._note(position, is_served, is_end=True)
        super()._done(replica, sent)

    def _note(self, position: int, is_served: bool, *, is_end: bool) -> None:
        now_ns = self._clock.now_ns
        is_at_once = self._num_sending > 0
        self.events.append(Event(now_ns, now_ns == self._latest_output_ns, position, is_end, is_served, is_at_once))


def _preceded(
    first: tuple[int, RequestRecord], others: Iterator[tuple[int, RequestRecord]]
) -> Iterator[tuple[int, RequestRecord]]:
    yield first
    yield from others


class _Only(Router):
    name = "only"

    def choose(self, request: RoutedRequest, view: View) -> int:
        return 0
