"""The clients of a simulated server: who sends which request when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sim.clock import Clock
from workloads.request_record import RequestRecord


class Clients:
    """Send the records of a workload, each when it is due and the server has a place for it.

    * A record is due at its ``arrival_ns``; a later turn of a session (``think_time_ns``) that long after the
      turn before it completed, but not before its ``arrival_ns``.
    * With ``max_concurrency``, at most that many requests are with the server; others wait here, in order.

    ``serve`` takes a record that is sent. Whoever serves says :meth:`request_done` once per record, be it at once.
    """

    def __init__(self, clock: Clock, serve: Callable[[RequestRecord], None], max_concurrency: int | None) -> None:
        self._clock = clock
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

    def start(self, workload: Iterable[RequestRecord]) -> None:
        """Begin with a workload whose records come in order of ``arrival_ns``."""
        self._records = iter(workload)
        self._next_record = next(self._records, None)
        self._read_arrivals()

    def request_done(self, session: str | None) -> None:
        """A request that was sent, of this session if any, is no longer with the server."""
        self._num_at_server -= 1
        if session is not None:
            self._turn_done(self._sessions[session])
        if not self._is_sending:
            self._send_ready()
            self._read_arrivals()

    def unsent(self) -> Iterator[RequestRecord]:
        """The records that were never sent, once nothing can happen any more."""
        yield from self._ready
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
        if self._next_record is not None and self._next_record.arrival_ns > max(now_ns, self._timer_ns):
            self._timer_ns = self._next_record.arrival_ns
            self._clock.call_at(self._timer_ns, self._read_arrivals)

    def _arrive(self, record: RequestRecord) -> None:
        if record.session is None:
            self._send(record)
            return
        session = self._sessions.setdefault(record.session, _Session())
        if record.think_time_ns is None:
            session.num_open += 1
            self._send(record)
        elif session.num_open or session.later_turns:
            session.later_turns.append(record)
        else:
            session.num_open += 1
            self._send_after_thinking(record, session.completed_ns)

    def _turn_done(self, session: _Session) -> None:
        session.num_open -= 1
        session.completed_ns = self._clock.now_ns
        if session.later_turns and not session.num_open:
            session.num_open += 1
            self._send_after_thinking(session.later_turns.popleft(), session.completed_ns)

    def _send_after_thinking(self, record: RequestRecord, completed_ns: int) -> None:
        assert record.think_time_ns is not None
        due_ns = max(completed_ns + record.think_time_ns, record.arrival_ns)
        if due_ns <= self._clock.now_ns:
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
            self._serve(self._ready.popleft())
        self._is_sending = False


class _Session:
    """A conversation whose later turns wait for earlier ones."""

    __slots__ = ("completed_ns", "later_turns", "num_open")

    def __init__(self) -> None:
        self.num_open = 0
        """Turns that were sent, or wait for their user, and have not completed."""
        self.completed_ns = 0
        self.later_turns: deque[RequestRecord] = deque()
