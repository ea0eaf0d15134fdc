"""The SimPy model of a server: requests arrive, the engine's loop turns, an executor takes time.

SimPy is the clock. There is one engine process and one timer for the next arrival, not a process per request or
token. Time is integer nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import simpy
from simpy.events import EventPriority

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executor import Step
from engine.invariants import InvariantChecker
from engine.request import Request
from engine.scheduler import Scheduler
from sim.recording import Recorder
from sim.requests import RequestFactory
from sim.simulated_executor import SimulatedExecutor
from sim.step_time import StepTimeModel
from workloads.errors import WorkloadError
from workloads.request_record import RequestRecord

_AFTER_ARRIVALS = EventPriority(2)
"""SimPy priority behind its NORMAL: the engine wakes up after everything else of the same instant."""


_PATIENCE_STEPS = 10_000
"""Steps without any output token before the run is suspected to make no progress."""


class ServerSimulation:
    """One server and the clients that send it a workload.

    * A record arrives at its ``arrival_ns``; a later turn of a session (``think_time_ns``) that long after the
      turn before it completed, but not before its ``arrival_ns``.
    * With ``max_concurrency``, at most that many requests are with the server; others wait at the client, in
      order, and count as sent when their turn comes.
    * Records that vLLM's front end refuses, or that can never fit, are counted in the recorder and not served.

    ``check`` verifies every invariant of the engine after every step, which is slow.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTimeModel,
        *,
        ignore_eos: bool = True,
        max_concurrency: int | None = None,
        check: bool = False,
        on_progress: Callable[[int], None] | None = None,
        on_refusal: Callable[[str, str], None] | None = None,
    ) -> None:
        """``on_progress`` is told how many requests are done, ``on_refusal`` where a refused record stands and why."""
        self.environment = simpy.Environment()
        self.scheduler = Scheduler(config)
        self.recorder = Recorder(self.scheduler)
        self._core = EngineCore(self.scheduler)
        self._executor = SimulatedExecutor(step_time)
        self._factory = RequestFactory(self.scheduler.keys, config.max_model_len, ignore_eos=ignore_eos)
        self._checker = InvariantChecker(self.scheduler) if check else None
        self._on_progress = on_progress
        self._on_refusal = on_refusal
        self._max_concurrency = max_concurrency
        self._num_at_server = 0
        self._sends_ready = False
        self._steps_without_output = 0
        self._num_done = 0
        self._records: Iterator[RequestRecord] = iter(())
        self._next_record: RequestRecord | None = None
        self._ready: deque[RequestRecord] = deque()
        self._sessions: dict[str, _Session] = {}
        self._session_of: dict[Request, str] = {}
        self._tickets: dict[int, tuple[object, int]] = {}
        self._device_free_ns = 0
        self._idle: simpy.Event | None = None

    def run(self, workload: Iterable[RequestRecord]) -> Recorder:
        """Serve ``workload``, whose records come in order of ``arrival_ns``; return what was recorded.

        Raises WorkloadError when a request's id belongs to one that is still being served.
        """
        self._records = iter(workload)
        self._next_record = next(self._records, None)
        self._read_arrivals()
        self.environment.process(self._engine_loop())
        self.environment.run()
        self.recorder.close(self.now_ns, self._unfinished())
        return self.recorder

    # ---------------------------------------------------------------- clients

    def _read_arrivals(self, _event: object = None) -> None:
        """Take the records that are due and can be sent; come back when the next one is due."""
        now_ns = self.now_ns
        while self._next_record is not None and self._next_record.arrival_ns <= now_ns and not self._ready:
            self._arrive(self._next_record)
            self._next_record = next(self._records, None)
        if self._next_record is not None and self._next_record.arrival_ns > now_ns:
            self._call_at(self._next_record.arrival_ns, self._read_arrivals)

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
            self._think(record, session.completed_ns)

    def _think(self, record: RequestRecord, completed_ns: int) -> None:
        """Send a later turn once its user has thought."""
        assert record.think_time_ns is not None
        due_ns = max(completed_ns + record.think_time_ns, self.now_ns)
        self._call_at(due_ns, lambda _event: self._send(record))

    def _turn_done(self, name: str) -> None:
        session = self._sessions[name]
        session.num_open -= 1
        session.completed_ns = self.now_ns
        if session.later_turns and not session.num_open:
            session.num_open += 1
            self._think(session.later_turns.popleft(), session.completed_ns)

    def _send(self, record: RequestRecord) -> None:
        if self._max_concurrency is not None and self._num_at_server >= self._max_concurrency:
            self._ready.append(record)
            return
        refusal = self._factory.refusal(record)
        if refusal:
            self.recorder.refuse(record, refusal)
            if self._on_refusal:
                self._on_refusal(record.source, refusal)
            self._client_done(record.session)
            return
        request = self._factory.make(record, self.now_ns)
        self._num_at_server += 1
        if record.session is not None:
            self._session_of[request] = record.session
        self.recorder.arrive(request, record, self.now_ns)
        self._executor.expect(request, record)
        try:
            self.scheduler.add_request(request)
        except ValueError as error:
            raise WorkloadError(record.source, str(error)) from None
        if request.is_finished:
            if self._on_refusal:
                self._on_refusal(record.source, request.finish_message)
            self._collect_ended()
        self._wake_engine()

    def _collect_ended(self) -> bool:
        """Tell the recorder and the clients which requests ended; whether any did."""
        ended = self.scheduler.take_ended()
        for request in ended:
            self.recorder.end(request, self.now_ns)
            self._num_at_server -= 1
            self._client_done(self._session_of.pop(request, None))
        return bool(ended)

    def _client_done(self, session: str | None) -> None:
        self._num_done += 1
        if self._on_progress:
            self._on_progress(self._num_done)
        if session is not None:
            self._turn_done(session)
        if self._ready and not self._sends_ready:
            self._send_ready()

    def _send_ready(self) -> None:
        """Send what waited at the client for others to complete."""
        assert self._max_concurrency is not None
        self._sends_ready = True
        while self._ready and self._num_at_server < self._max_concurrency:
            self._send(self._ready.popleft())
            if not self._ready:
                self._read_arrivals()
        self._sends_ready = False

    # ---------------------------------------------------------------- the engine

    def _engine_loop(self) -> Generator[simpy.Event, Any, None]:
        core = self._core
        while True:
            step = core.schedule_next()
            moved = False
            if step is not None:
                self._submit(step)
                moved = self._collect_ended() or bool(step.requests or step.finished)
            if core.must_collect():
                yield self._at(self._tickets[core.in_flight[0].index][1])
                self._process_oldest()
            if not core.in_flight and not moved:
                # Only an arrival can change anything: the next step would be as empty as this one.
                self._idle = self.environment.event()
                yield self._idle
                yield self._at(self.now_ns)
            elif self._makes_no_progress():
                return

    def _submit(self, step: Step) -> None:
        """Start a step when the device is free: the one place where time is spent."""
        now_ns = self.now_ns
        ticket = self._executor.submit(step)
        start_ns = max(self._device_free_ns, now_ns)
        self._device_free_ns = start_ns + ticket[1]
        self._tickets[step.index] = (ticket, self._device_free_ns)
        self.recorder.schedule(step, now_ns, start_ns, self._device_free_ns)

    def _process_oldest(self) -> None:
        step = self._core.in_flight[0]
        ticket, _ = self._tickets.pop(step.index)
        result = self._executor.collect(ticket)
        self._core.process(result.tokens)
        self._steps_without_output = 0 if any(result.tokens) else self._steps_without_output + 1
        self.recorder.process(step, result.tokens, self.now_ns)
        if self._checker:
            self._checker.check()
        self._collect_ended()

    def _wake_engine(self) -> None:
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None

    def _makes_no_progress(self) -> bool:
        """Whether requests preempt each other for ever (vLLM can; see docs/deviations.md)."""
        if self._steps_without_output < _PATIENCE_STEPS or self._steps_without_output % _PATIENCE_STEPS:
            return False
        config = self.scheduler.config
        chunk = min(config.token_budget, config.long_prefill_token_threshold or config.token_budget)
        steps_to_prefill_all = sum(request.num_tokens // chunk + 1 for request in self._unfinished())
        return self._steps_without_output > 10 * steps_to_prefill_all

    def _unfinished(self) -> list[Request]:
        return [*self.scheduler.running, *self.scheduler.waiting]

    # ---------------------------------------------------------------- the clock

    @property
    def now_ns(self) -> int:
        """Simulated time since the start of the workload."""
        return int(self.environment.now)

    def _at(self, time_ns: int) -> simpy.Event:
        """An event at ``time_ns``, behind all others of that instant."""
        event = simpy.Event(self.environment)
        event._ok, event._value = True, None
        self.environment.schedule(event, _AFTER_ARRIVALS, time_ns - self.now_ns)
        return event

    def _call_at(self, time_ns: int, function: Callable[[simpy.Event], None]) -> None:
        event = self.environment.timeout(time_ns - self.now_ns)
        assert event.callbacks is not None
        event.callbacks.append(function)


class _Session:
    """A conversation whose later turns wait for earlier ones."""

    __slots__ = ("completed_ns", "later_turns", "num_open")

    def __init__(self) -> None:
        self.num_open = 0
        """Turns that were sent, or wait for their user, and have not completed."""
        self.completed_ns = 0
        self.later_turns: deque[RequestRecord] = deque()
