"""The SimPy model of a server: the engine's loop turns, an executor takes time, clients wait for answers.

SimPy is the clock. There is one engine process and one timer for the next arrival, not a process per request or
token.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.compiled.loop.run import HANGS, HELD, IDLE, NEEDS_ROOM, SOMEBODY_ENDED, TOO_LATE, WAKES_LATER
from kvtwin.engine.compiled.loop.state import LAST_NS
from kvtwin.engine.compiled.machine_code import machine_code
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.executor import Executor, Step, StepResult
from kvtwin.engine.observer import Observer
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.engine.server import ServerScheduler, make_checker, make_scheduler
from kvtwin.sim.clients import Clients
from kvtwin.sim.clock import Clock
from kvtwin.sim.compiled_engine import CompiledEngine, KeyRuns
from kvtwin.sim.compiled_settings import reasons_against
from kvtwin.sim.recording import Recorder
from kvtwin.sim.requests import RequestFactory
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord

Observe = Callable[[ServerScheduler, Callable[[], int]], Observer]
"""Makes an observer of a scheduler, which may ask what time it is, in ns."""

_PATIENCE_STEPS = 10_000
"""Steps without any output token before the run is suspected to make no progress."""

_PATIENCE_PREFILLS = 10
"""How often everything could have been prefilled in these steps, for the suspicion to be certain."""


class ServerSimulation:
    """One server and the :class:`~kvtwin.sim.clients.Clients` that send it a workload.

    Records that vLLM's front end refuses, or that can never fit, are counted in the recorder and not served.

    The present instant belongs to the clients first: the engine schedules after all arrivals of the same instant.
    Steps run one after the other, in the order in which they were scheduled. ``executor`` says what comes of each, and
    how long it takes: the clock passes that time, however long the executor itself works.
    """

    steps_together = False
    """Whether it waits for others in every step (:mod:`kvtwin.sim.cluster.lock_step`)."""
    num_unseen_requests = 0
    """Those that arrived since the loop last looked, where that matters."""

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor[Any],
        *,
        clock: Clock | None = None,
        ignore_eos: bool = True,
        max_concurrency: int | None = None,
        check: bool = False,
        observe: Observe | None = None,
        on_progress: Callable[[int], None] | None = None,
        on_refusal: Callable[[str, str], None] | None = None,
        num_warm_up_requests: int = 0,
        compiled: bool = True,
        keys: KeySpace | None = None,
    ) -> None:
        """An executor that is a :class:`ServerObserver` hears of everything before ``observers`` do.

        With a ``clock`` the server is one of several on it (:mod:`kvtwin.sim.cluster`): whoever has the clock sends it
        records with :meth:`serve`, and sets ``on_done``.

        ``on_progress`` gets the number of finished requests, ``on_refusal`` a refused record's place and the reason.

        The first ``num_warm_up_requests`` that are sent are served and left out of all that is recorded and counted;
        ``observers`` hear of them too.

        ``check`` verifies every invariant of the engine after every step, which is slow. ``observe`` makes an observer
        of the engine's decisions. ``compiled`` lets the compiled loop decide where it can. ``keys`` are
        those of other servers on the clock.
        """
        self.scheduler = make_scheduler(config, keys)
        self.recorder = Recorder(self.scheduler)
        self.observers: list[ServerObserver] = [executor] if isinstance(executor, ServerObserver) else []
        """Who else hears of every request and step; fill it before the run."""
        self._told = self.observers
        """Who of them is told: beside the compiled loop the executor is not, since it executes nothing."""
        self._clock = clock or Clock()
        self._shares_clock = clock is not None
        self._clients = Clients(self._clock, self.serve, max_concurrency, self)
        self.on_done = self._clients.request_done
        """Told of every record that is no longer with the server."""
        self.ends_matter: Callable[[], bool] = lambda: True
        """Whether the end of any request that a server on the clock has now may lead to something at that instant."""
        if observe:
            self.scheduler.observe(observe(self.scheduler, lambda: self._clock.now_ns))
        self._core = EngineCore(self.scheduler)
        self._executor = executor
        self._factory = RequestFactory(
            self.scheduler.keys,
            config.max_model_len,
            ignore_eos=ignore_eos,
            encoder_cache_size=config.encoder_cache_size,
        )
        self._checker = make_checker(config, self.scheduler) if check else None
        self._on_progress = on_progress
        self._on_refusal = on_refusal
        self._num_warm_up_left = num_warm_up_requests
        self._block_metrics = self.scheduler.block_metrics
        self._num_done = 0
        self._record_of: dict[Request, RequestRecord] = {}
        self._turns_left: Counter[str] = Counter()
        """Records of each session that are not done; only where the retention policy asks for it."""
        self._tickets: deque[tuple[Any, int]] = deque()
        """Of each step in flight, in order: the executor's ticket, and when the step was submitted."""
        self._device_free_ns = 0
        """When the latest step whose duration is known ends."""
        self._steps_without_output = 0
        self._idle: simpy.Event | None = None
        """What an idle loop waits for; its value is when to go on."""
        self._max_concurrency = max_concurrency
        self._has_observer = observe is not None
        self._looks_ahead = False
        """Whether nobody but the warm-up keeps the loop from having requests before they arrive."""
        self.ended_ns = 0
        """When requests ended last, of which was told."""
        self._may_compile = compiled
        self._compiled: CompiledEngine | None = None
        self._expected: deque[tuple[Request, RequestRecord]] = deque()
        """Requests that the loop has already, and nobody was told of."""
        self.why_plain: tuple[str, ...] = ()
        """Why the run is decided by the plain scheduler; empty if by the compiled loop, which decides the same."""

    def run(self, workload: Iterable[RequestRecord]) -> Recorder:
        """Serve ``workload``, whose records come in order of ``arrival_ns``; return what was recorded.

        A retention policy other than ``lru`` has to know which turn is a session's last: then ``workload`` is iterated
        twice. Raises WorkloadError when a request's id belongs to one that is still being served, and what the executor
        raises: :meth:`close` completes the record then.
        """
        if self.scheduler.config.retention != "lru":
            self._turns_left.update(record.session for record in workload if record.session is not None)
        self.start()
        self._clients.start(workload)
        self._clock.run()
        return self.close()

    def start(self) -> None:
        """Let the engine's loop turn as the clock runs."""
        self._compiled = self._make_compiled()
        if self._compiled is None:
            loop = self._engine_loop()
        elif self._shares_clock:
            loop = self._compiled_loop_among_others(self._compiled)
        else:
            loop = self._compiled_loop(self._compiled)
        self._clock.environment.process(loop)

    @property
    def step_stamp(self) -> tuple[int, int]:
        """The wave and the step that it is at, where it steps together with others."""
        return 0, 0

    @property
    def decided_by(self) -> str:
        """Who decides the steps, and why not the compiled loop, once the run has begun."""
        return f"plain scheduler: {', '.join(self.why_plain)}" if self.why_plain else "compiled loop"

    def close(self) -> Recorder:
        """End the record where the run stands; for whoever caught what ended it early."""
        if self._compiled:
            self._compiled.hand_back()
        self._tell_arrivals(self._clock.now_ns)
        self.recorder.close(self._clock.now_ns, self._unfinished(), sum(1 for _ in self._clients.unsent()))
        return self.recorder

    # ---------------------------------------------------------------- requests come and go

    def refusal(self, record: RequestRecord) -> str | None:
        """Why vLLM's front end would refuse the record; None if it would not."""
        return self._factory.refusal(record)

    def unsent(self, record: RequestRecord) -> Request:
        """A request for ``record`` that is not sent: to look up what is cached of it here."""
        return self._factory.unsent(record)

    def serve(self, record: RequestRecord) -> None:
        """Take a record that a client sends at the present instant."""
        is_warm_up = self._num_warm_up_left > 0
        self._num_warm_up_left -= 1
        if self._num_warm_up_left == -1:
            if self._compiled:
                self._compiled.flush()
            self.recorder.start_anew()
        refusal = self._factory.refusal(record)
        if refusal:
            if not is_warm_up:
                self.recorder.refuse(record, refusal)
            self._report_refusal(record, refusal)
            self._request_done(record)
            return
        now_ns = self._clock.now_ns
        samples = self._factory.make(record, now_ns)
        for request in samples:
            request.is_warm_up = is_warm_up
        self._tell_arrivals(now_ns)
        self.recorder.arrive(samples, record, now_ns)
        for request in samples:
            for observer in self._told:
                observer.arrived(request, record, now_ns)
            self._record_of[request] = record
            try:
                self.scheduler.add_request(request)
            except ValueError as error:
                raise WorkloadError(record.source, str(error)) from None
        if samples[0].is_finished:  # and so are the others: they are equally long
            self._report_refusal(record, samples[0].finish_message)
            self._collect_ended(now_ns)
        elif self._idle is not None:
            self._idle.succeed(now_ns)
            self._idle = None

    def expect(self, record: RequestRecord) -> bool:
        """Take a record that a client will send at its ``arrival_ns``, behind all others; False: only when it is sent.

        The loop need not stop for it then. Nothing must come before all that is expected has arrived.
        """
        return self.expected_keys(record) is not None

    def expected_keys(self, record: RequestRecord) -> KeyRuns | None:
        """As :meth:`expect`, with what its blocks are known by."""
        engine = self._compiled
        if engine is None or not self.looks_ahead:
            return None
        if record.n > 1 or record.session is not None or record.data_parallel_rank is not None or record.images:
            return None
        if self._factory.refusal(record):
            return None
        request = self._factory.unsent(record)
        assert isinstance(self.scheduler, Scheduler)  # no other's steps are decided by the loop
        if not self.scheduler.expect(request):
            return None
        request.arrival_ns = self._factory.stamp(record.arrival_ns)
        engine.take_arrivals(self._record_of, must_tell=False)  # they come before
        self._record_of[request] = record
        self._expected.append((request, record))
        return engine.expect(request, record)

    @property
    def looks_ahead(self) -> bool:
        """Whether the loop may have requests before they arrive."""
        return self._looks_ahead and self._num_warm_up_left < 0

    def expect_no_more(self) -> None:
        """All that is known beforehand was told: the loop may go on."""
        if self._compiled and self._idle is not None and (arrives_ns := self._compiled.next_arrival_ns) is not None:
            self._idle.succeed(arrives_ns)
            self._idle = None

    def ask(self, questions: array[int], runs: array[int]) -> None:
        """See :meth:`CompiledEngine.ask`; only for one who takes expected records."""
        assert self._compiled is not None
        self._compiled.ask(questions, runs)

    def answers(self) -> list[int]:
        """See :meth:`CompiledEngine.answers`."""
        assert self._compiled is not None
        return self._compiled.answers()

    def _tell_arrivals(self, until_ns: int) -> int:
        """Tell of the requests that were expected by then; return when the next one arrives."""
        while self._expected:
            request, record = self._expected[0]
            if record.arrival_ns > until_ns:
                return record.arrival_ns
            self._expected.popleft()
            self.recorder.arrive([request], record, record.arrival_ns)
            for observer in self._told:
                observer.arrived(request, record, record.arrival_ns)
        return LAST_NS

    def _report_refusal(self, record: RequestRecord, reason: str) -> None:
        if self._on_refusal:
            self._on_refusal(record.source, reason)

    def _collect_ended(self, now_ns: int) -> bool:
        """Tell the recorder which requests ended, and the clients whose samples have all ended; whether any did."""
        ended = self.scheduler.take_ended()
        self.ended_ns = now_ns
        for request in ended:
            record = self._record_of.pop(request)
            for observer in self._told:
                observer.ended(request, now_ns)
            if self.recorder.end(request, now_ns):
                self._request_done(record)
        return bool(ended)

    def _request_done(self, record: RequestRecord) -> None:
        self._num_done += 1
        if self._on_progress:
            self._on_progress(self._num_done)
        session = record.session
        if session is not None and session in self._turns_left:
            self._turns_left[session] -= 1
            if not self._turns_left[session]:
                self.scheduler.retention.session_over(session)
        self.on_done(record)

    # ---------------------------------------------------------------- the engine

    def _engine_loop(self) -> Generator[simpy.Event, Any, None]:
        core, clock = self._core, self._clock
        while not self._makes_no_progress():
            moved = False
            if self._shares_clock:
                yield clock.after_outputs(clock.now_ns)
            self._turn()
            step = core.schedule_next()
            if step is not None:
                self._submit(step)
                moved = self._collect_ended(clock.now_ns) or bool(step.requests or step.preempted or step.finished)
            if core.must_collect():
                result = self._collect_oldest()
                # The end is past if the loop was idle behind a step without requests.
                yield clock.after_arrivals(max(self._device_free_ns, clock.now_ns))
                moved |= bool(core.in_flight[0].requests)
                self._process_oldest(result)
            is_settled = not moved and not self.scheduler.encoder.mismatched
            if is_settled and not any(step.requests for step in core.in_flight):
                # Only an arrival can change anything: the next step would be as empty as this one.
                self._idle = clock.environment.event()
                yield self._idle
                yield clock.after_arrivals(clock.now_ns)

    def _turn(self) -> None:
        """The loop knows all that has arrived, and is about to schedule."""
        now_ns = self._clock.now_ns
        for observer in self.observers:
            observer.turns(now_ns)
        self.scheduler.retention.advance_to(now_ns)
        if self._block_metrics:
            self._block_metrics.now_ns = now_ns

    def _submit(self, step: Step) -> None:
        if self._checker:
            self._checker.check_step(step)
        self._tickets.append((self._executor.submit(step), self._clock.now_ns))
        self.recorder.schedule(step, self._clock.now_ns)
        for observer in self.observers:
            observer.scheduled(step, self._clock.now_ns)

    def _collect_oldest(self) -> StepResult:
        """The result of the oldest step in flight, which ran as soon as the device was free: all time is spent here."""
        ticket, submitted_ns = self._tickets.popleft()
        result = self._executor.collect(ticket)
        start_ns = max(self._device_free_ns, submitted_ns)
        self._device_free_ns = start_ns + result.duration_ns
        self.recorder.run(start_ns, self._device_free_ns)
        return result

    def _process_oldest(self, result: StepResult) -> None:
        self.scheduler.retention.advance_to(self._clock.now_ns)
        step = self._core.process(result.tokens, result.num_drafts)
        self._steps_without_output = 0 if any(result.tokens) else self._steps_without_output + 1
        self.recorder.process(step, result.tokens, self._clock.now_ns)
        for observer in self.observers:
            observer.processed(step, self._clock.now_ns)
        if self._checker:
            self._checker.check()
        self._collect_ended(self._clock.now_ns)

    # ---------------------------------------------------------------- the same, compiled

    def _make_compiled(self) -> CompiledEngine | None:
        """The compiled loop, if it can decide this run."""
        config, executor = self.scheduler.config, self._executor
        others = [observer for observer in self.observers if not isinstance(observer, SimulatedExecutor)]
        reasons = list(reasons_against(config)) if self._may_compile else ["the plain one was asked for"]
        costs = None
        if isinstance(executor, SimulatedExecutor) and not reasons:
            costs = executor.step_costs(config.max_running_requests, config.token_budget)
        if costs is None and not reasons:
            reasons.append("steps whose time only the executor knows")
        if self._checker or self._has_observer or any(one.looks_into_steps for one in others):
            reasons.append("somebody watches every step")
        if not reasons and not all(one.looks_at_keys_alone for one in self.scheduler.kv_cache.pool.listeners):
            reasons.append("somebody watches every block")
        if not reasons and machine_code() is None:
            reasons.append("nothing is compiled here")
        self.why_plain = tuple(reasons)
        if costs is None or reasons:
            return None
        assert isinstance(self.scheduler, Scheduler)
        self._told = others
        looks_at_outputs = any(observer.looks_at_turns for observer in others)
        self._looks_ahead = not looks_at_outputs
        return CompiledEngine(self.scheduler, self.recorder, costs, tells_first_tokens=looks_at_outputs)

    def _compiled_loop(self, engine: CompiledEngine) -> Generator[simpy.Event, Any, None]:
        """``_engine_loop``, by the compiled loop: it runs to the next event of the clock, or to an end that matters."""
        clock = self._clock
        must_tell = self._max_concurrency is not None
        while True:
            engine.take_arrivals(self._record_of, must_tell=must_tell)
            why = engine.run(clock.now_ns, clock.next_ns)
            if why in (SOMEBODY_ENDED, IDLE, HANGS) and engine.now_ns > clock.now_ns:
                yield clock.after_arrivals(engine.now_ns)
            engine.tell_key_changes()
            engine.tell(self._told, self._collect_ended, self._tell_arrivals)
            if why == HANGS:
                self._stop(engine)
                return
            yield from self._wait(engine, why)

    def _compiled_loop_among_others(self, engine: CompiledEngine) -> Generator[simpy.Event, Any, None]:
        """The same for one of several servers: what ends at an instant is delivered by all before any decides then.

        Before the next event of the clock nobody else does anything, so up to there it need not wait for them; and
        where the end of no request matters, not before somebody sends the next one.
        """
        clock = self._clock
        watches_turns = any(observer.looks_at_turns for observer in self._told)
        while True:
            others_act, why = clock.next_ns == clock.now_ns, HELD
            if others_act or watches_turns:
                engine.hold(LAST_NS if watches_turns else clock.now_ns, may_decide=False)
                why = self._run(engine, clock.now_ns)
            if why == HELD:
                if others_act or watches_turns:
                    self._tell_of_outputs(engine)
                if others_act:
                    yield clock.after_outputs(clock.now_ns)
                engine.take_arrivals(self._record_of, must_tell=self.ends_matter())
                for observer in self._told:
                    observer.turns(clock.now_ns)
                engine.hold(LAST_NS if watches_turns else clock.now_ns, may_decide=True)
                why = self._run(engine, clock.next_ns if self.ends_matter() else clock.next_call_ns)
            if why != WAKES_LATER and engine.now_ns > clock.now_ns:
                yield clock.after_arrivals(engine.now_ns)
            self._tell_of_outputs(engine)
            if why == HANGS:
                self._stop(engine)
                return
            yield from self._wait(engine, why)

    def _run(self, engine: CompiledEngine, until_ns: int | None) -> int:
        """Let ``engine`` run; whoever needs room at the present instant does not lose its place among the others."""
        while True:
            why = engine.run(self._clock.now_ns, until_ns)
            if why != NEEDS_ROOM or engine.now_ns > self._clock.now_ns:
                return why
            self._tell_of_outputs(engine)
            engine.make_room()

    def _wait(self, engine: CompiledEngine, why: int) -> Generator[simpy.Event, Any, None]:
        """Wait for what ``engine`` cannot go on without; ``why`` is what it came back for."""
        clock = self._clock
        if why == NEEDS_ROOM:
            engine.make_room()
        elif why == WAKES_LATER:
            yield clock.after_arrivals(engine.wake_ns)
        elif why == IDLE and not self.scheduler.waiting:
            next_ns = engine.next_arrival_ns
            if next_ns is None:
                self._idle = clock.environment.event()
                next_ns = yield self._idle
            yield clock.after_arrivals(max(clock.now_ns, next_ns))
        elif why == TOO_LATE:
            raise OverflowError("the simulated time passes 292 years")

    def _tell_of_outputs(self, engine: CompiledEngine) -> None:
        """Tell what became of requests, at the instant up to which the engine ran."""
        engine.tell_key_changes()
        if engine.take_processed():
            step = Step(-1, engine.take_first_tokens())
            for observer in self._told:
                if observer.looks_at_turns:
                    observer.processed(step, self._clock.now_ns)
        engine.tell(self._told, self._collect_ended, self._tell_arrivals)

    def _stop(self, engine: CompiledEngine) -> None:
        """The loop has ended: who arrives later waits for ever."""
        engine.take_back_expected()
        self._looks_ahead = False

    @property
    def num_requests(self) -> tuple[int, int]:
        """Requests that wait for admission, and that run."""
        scheduler = self.scheduler
        waiting, running = self._compiled.num_requests if self._compiled else (0, len(scheduler.running))
        return waiting + len(scheduler.waiting), running

    def _makes_no_progress(self) -> bool:
        """Whether requests preempt each other for ever (vLLM can; see docs/deviations.md)."""
        if self._steps_without_output < _PATIENCE_STEPS or self._steps_without_output % _PATIENCE_STEPS:
            return False
        config = self.scheduler.config
        chunk = min(config.token_budget, config.long_prefill_token_threshold or config.token_budget)
        steps_to_prefill_all = sum(request.num_tokens // chunk + 1 for request in self._unfinished())
        return self._steps_without_output > _PATIENCE_PREFILLS * steps_to_prefill_all

    def _unfinished(self) -> list[Request]:
        return [*self.scheduler.running, *self.scheduler.waiting]
