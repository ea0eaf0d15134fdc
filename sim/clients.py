"""The clients of a simulated server: who sends which request when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from kvtwin.sim.clock import Clock
from kvtwin.workloads.request_record import RequestRecord

_MOST_AHEAD = 128
"""Records that a server is told of before they are sent: what it keeps of them still lies near."""


class TakesAhead(Protocol):
    """Takes records before they are sent."""

    def expect(self, record: RequestRecord) -> bool:
        """Take one that will be sent at its ``arrival_ns``, behind all others; False: send it then."""

    def expect_no_more(self) -> None:
        """Until one of these has been sent, or another one, nothing more is told."""


class Clients:
    """Send the records of a workload, each when it is due and the server has a place for it.

    * A record is due at its ``arrival_ns``; a later turn of a session (``think_time_ns``) that long after the
      turns before it completed, but not before its ``arrival_ns``.
    * A record with predecessors (``after``) is due when the last of their delays is over, but not before that.
    * With ``max_concurrency``, at most that many requests are with the server; others wait here, in order.

    ``ahead`` is told of records before they are sent, where nothing can change that; ``serve`` takes one that is sent.
    The server calls :meth:`request_done` once per record, sometimes from within ``serve``.
    """

    def __init__(
        self,
        clock: Clock,
        serve: Callable[[RequestRecord], None],
        max_concurrency: int | None,
        ahead: TakesAhead | None = None,
    ) -> None:
        self._clock = clock
        self._ahead = ahead
        self._serve = serve
        self._max_concurrency = max_concurrency
        self._num_at_server = 0
        self._records: Iterator[RequestRecord] = iter(())
        self._next_record: RequestRecord | None = None
        self._timer_ns = -1
        """The latest instant for which a look at the workload is planned."""
        self._ready: deque[RequestRecord] = deque()
        """Records that are due and wait for a place."""
        self._is_sending = False
        self._sessions: dict[str, _Session] = {}
        self._happened_ns: dict[_Event, int] = {}
        """When requests of sessions were dispatched and completed."""
        self._waiting_for: dict[_Event, list[_Waiting]] = {}

    def start(self, workload: Iterable[RequestRecord]) -> None:
        """Begin with a workload whose records come in order of ``arrival_ns``."""
        self._records = iter(workload)
        self._next_record = next(self._records, None)
        self._read_arrivals()

    def request_done(self, record: RequestRecord) -> None:
        """A record that was sent is no longer with the server."""
        self._num_at_server -= 1
        if record.session is not None:
            self._happen(record.request_id, dispatched=False)
            self._turn_done(self._sessions[record.session])
        if self._max_concurrency is not None and not self._is_sending:
            self._send_ready()
            self._read_arrivals()

    def unsent(self) -> Iterator[RequestRecord]:
        """The records that were never sent, once nothing can happen any more."""
        yield from self._ready
        yield from {id(waiting): waiting.record for all in self._waiting_for.values() for waiting in all}.values()
        for session in self._sessions.values():
            yield from session.later_turns
        if self._next_record is not None:
            yield self._next_record
        yield from self._records

    def _read_arrivals(self, _event: object = None) -> None:
        """Take the records that are due, as long as they can be sent; come back when the next one is due."""
        now_ns = self._clock.now_ns
        while self._next_record is not None and self._next_record.arrival_ns <= now_ns and not self._ready:
            record = self._next_record
            self._next_record = next(self._records, None)
            self._arrive(record)
        if self._ahead and self._max_concurrency is None and not self._sessions:
            self._tell_ahead(self._ahead)
        if self._next_record is not None and self._next_record.arrival_ns > max(now_ns, self._timer_ns):
            self._timer_ns = self._next_record.arrival_ns
            self._clock.call_at(self._timer_ns, self._read_arrivals)

    def _tell_ahead(self, server: TakesAhead) -> None:
        """Tell what is sent next, as far as nothing can change it: until there are sessions, whose turns may wait."""
        has_told = False
        for _ in range(_MOST_AHEAD):
            record = self._next_record
            if record is None or record.waits or record.session is not None or not server.expect(record):
                break
            self._num_at_server += 1
            self._next_record = next(self._records, None)
            has_told = True
        if has_told:
            server.expect_no_more()

    def _arrive(self, record: RequestRecord) -> None:
        if record.session is None:
            self._send_after(record, record.arrival_ns)
            return
        session = self._sessions.setdefault(record.session, _Session())
        if record.think_time_ns is None:
            session.num_open += 1
            self._send_after(record, record.arrival_ns)
        else:
            session.later_turns.append(record)
            self._take_turn(session)

    def _turn_done(self, session: _Session) -> None:
        session.num_open -= 1
        session.completed_ns = self._clock.now_ns
        self._take_turn(session)

    def _take_turn(self, session: _Session) -> None:
        """Let the user of a session think about the next turn, if no answer is outstanding."""
        if session.later_turns and not session.num_open:
            record = session.later_turns.popleft()
            assert record.think_time_ns is not None
            session.num_open += 1
            self._send_after(record, max(session.completed_ns + record.think_time_ns, record.arrival_ns))

    def _happen(self, request_id: str, *, dispatched: bool) -> None:
        """A request was dispatched, or completed: whoever waits for that has one thing less to wait for."""
        event = request_id, dispatched
        self._happened_ns[event] = self._clock.now_ns
        for waiting in self._waiting_for.pop(event, ()):
            waiting.num_events -= 1
            if not waiting.num_events:
                self._send_after(waiting.record, waiting.due_ns)

    def _send_after(self, record: RequestRecord, due_ns: int) -> None:
        """Send a record at ``due_ns``, or when the delays behind its predecessors are over, whichever is later."""
        missing = []
        for predecessor in record.after:
            event = predecessor.request_id, predecessor.dispatched
            if event in self._happened_ns:
                due_ns = max(due_ns, self._happened_ns[event] + predecessor.delay_ns)
            else:
                missing.append(event)
        if missing:
            waiting = _Waiting(record, due_ns, len(missing))
            for event in missing:
                self._waiting_for.setdefault(event, []).append(waiting)
        elif due_ns <= self._clock.now_ns:
            self._send(record)
        else:
            self._clock.call_at(due_ns, lambda _event: self._send(record))

    def _send(self, record: RequestRecord) -> None:
        """Send a record that is due, now or as soon as the server has a place."""
        self._ready.append(record)
        self._send_ready()

    def _send_ready(self) -> None:
        if self._is_sending:
            return  # called by what the loop below sent, and the loop goes on
        self._is_sending = True
        while self._ready and (self._max_concurrency is None or self._num_at_server < self._max_concurrency):
            self._num_at_server += 1
            record = self._ready.popleft()
            if record.session is not None:
                self._happen(record.request_id, dispatched=True)
            self._serve(record)
        self._is_sending = False


_Event = tuple[str, bool]
"""A request's id, and whether its dispatch is meant, not its completion."""


class _Waiting:
    """A record that waits for ``num_events`` predecessors, and in any case until ``due_ns``."""

    __slots__ = ("due_ns", "num_events", "record")

    def __init__(self, record: RequestRecord, due_ns: int, num_events: int) -> None:
        self.record = record
        self.due_ns = due_ns
        self.num_events = num_events


class _Session:
    """A conversation whose later turns wait for earlier ones."""

    __slots__ = ("completed_ns", "later_turns", "num_open")

    def __init__(self) -> None:
        self.num_open = 0
        """Turns that were sent, or wait for their user, and have not completed."""
        self.completed_ns = 0
        self.later_turns: deque[RequestRecord] = deque()
