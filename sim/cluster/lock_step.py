"""Ranks of data parallelism that share experts: they step together (specification, section 17.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import Any

import simpy

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Step, StepResult
from kvtwin.engine.prefill_pacing import CommonPrefillPacing
from kvtwin.engine.scheduler import Scheduler
from kvtwin.sim.clock import Clock
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord

SYNC_INTERVAL_STEPS = 16
"""vLLM's ``dp_sync_interval``: how often ranks ask each other whether anybody has unfinished requests."""


class ForwardPass:
    """One pass through the model, which every rank makes with requests of its own or with none."""

    def __init__(self, clock: Clock, num_ranks: int) -> None:
        self.has_begun = clock.environment.event()
        """Succeeds when the last rank has joined: the device computes as soon as it is free."""
        self.start_ns = self.end_ns = 0
        """When it computes; known once it has begun."""
        self.num_missing_ranks = num_ranks
        self.duration_ns = 0
        """Of the slowest of those that have joined."""


class LockStep:
    """What the ranks have in common: their forward passes, and the waves in which they run.

    A wave begins when an idle rank gets a request, and wakes all. It ends when no rank has unfinished requests at an
    agreement, which is at the wave's first step and then at every ``sync_interval_steps``-th.
    """

    def __init__(
        self, clock: Clock, num_ranks: int, idle_pass_ns: int, sync_interval_steps: int = SYNC_INTERVAL_STEPS
    ) -> None:
        """``idle_pass_ns``: how long a pass lasts in which no rank has requests."""
        self._clock = clock
        self._num_ranks = num_ranks
        self._idle_pass_ns = idle_pass_ns
        self.sync_interval_steps = sync_interval_steps
        self.is_running = False
        self.wave = 0
        self.num_passes = 0
        """Forward passes that have begun."""
        self.num_idle_passes = 0
        """Times that a rank went through one without requests."""
        self._passes: list[ForwardPass] = []
        """Those that some rank has joined and another has not, the oldest first."""
        self._device_free_ns = 0
        self._asked: simpy.Event | None = None
        self._num_asked = 0
        self._any_unfinished = False
        self._next_pass = [0] * num_ranks
        self._idle: list[simpy.Event] = []

    def join(self, rank: int, duration_ns: int | None) -> ForwardPass:
        """``rank`` begins its next forward pass, which would take it ``duration_ns`` alone; None: without requests."""
        if duration_ns is None:
            self.num_idle_passes += 1
            duration_ns = self._idle_pass_ns
        place = self._next_pass[rank] - self.num_passes
        self._next_pass[rank] += 1
        if place == len(self._passes):
            self._passes.append(ForwardPass(self._clock, self._num_ranks))
        joined = self._passes[place]
        joined.num_missing_ranks -= 1
        joined.duration_ns = max(joined.duration_ns, duration_ns)
        if not joined.num_missing_ranks:
            self._passes.pop(0)
            self.num_passes += 1
            joined.start_ns = max(self._clock.now_ns, self._device_free_ns)
            joined.end_ns = self._device_free_ns = joined.start_ns + joined.duration_ns
            joined.has_begun.succeed()
        return joined

    def agree(self, is_unfinished: bool) -> simpy.Event:
        """A rank says whether it has unfinished requests; the event comes when all have, and has whether any does."""
        if self._asked is None:
            self._asked = self._clock.environment.event()
        asked = self._asked
        self._num_asked += 1
        self._any_unfinished |= is_unfinished
        if self._num_asked == self._num_ranks:
            self.is_running = self._any_unfinished
            self.wave += not self.is_running
            self._asked, self._num_asked, self._any_unfinished = None, 0, False
            asked.succeed(self.is_running)
        return asked

    def wait_for_wave(self) -> simpy.Event:
        """An event that comes when a wave begins, unless the rank wakes itself before."""
        event = self._clock.environment.event()
        self._idle.append(event)
        return event

    def begin_wave(self) -> None:
        """Wake all ranks that wait for it, if there is no wave."""
        if self.is_running:
            return
        self.is_running = True
        idle, self._idle = self._idle, []
        for event in idle:
            if not event.triggered:
                event.succeed()


class LockStepRank(ServerSimulation):
    """A server that is one of the ranks of a :class:`LockStep`.

    Its loop turns as vLLM's does: in every turn it begins one forward pass, with what it schedules, or without
    requests. The outputs of a pass come when the slowest rank is done; a turn without requests ends when the pass has
    begun, for which the host waits, not when it has been computed.
    """

    steps_together = True

    def __init__(
        self,
        config: EngineConfig,
        executor: SimulatedExecutor,
        lock_step: LockStep,
        rank: int,
        **others: Any,
    ) -> None:
        """``others`` are those of :class:`ServerSimulation`, a clock among them."""
        super().__init__(config, executor, compiled=False, **others)
        self._lock_step = lock_step
        self._rank = rank
        self._num_steps = 0
        """Turns of the loop since the wave began."""
        self._passes: deque[tuple[Step, ForwardPass]] = deque()
        """Of each step in flight that has requests, in order."""
        assert isinstance(self.scheduler, Scheduler)  # only vLLM's ranks are known to step together
        self.scheduler.pace_prefills(CommonPrefillPacing(config.prefill_schedule_interval, lambda: self._num_steps))

    @property
    def step_stamp(self) -> tuple[int, int]:
        return self._lock_step.wave, self._num_steps

    def serve(self, record: RequestRecord) -> None:
        num_waiting = len(self.scheduler.waiting)
        super().serve(record)
        self.num_unseen_requests += len(self.scheduler.waiting) - num_waiting

    def _engine_loop(self) -> Generator[simpy.Event, Any, None]:
        core, clock, together = self._core, self._clock, self._lock_step
        while not self._makes_no_progress():
            yield clock.after_outputs(clock.now_ns)
            self.num_unseen_requests = 0
            if self._num_unfinished():
                together.begin_wave()
            self._turn()
            step = core.schedule_next()
            has_requests = step is not None and bool(step.requests)
            if step is not None:
                self._submit(step)
                self._collect_ended(clock.now_ns)
            if core.must_collect():
                yield from self._outputs_come()
            for observer in self.observers:
                observer.stepped(clock.now_ns)
            is_unfinished = self._num_unfinished() > self.num_unseen_requests
            if not has_requests:
                if not is_unfinished and not together.is_running:
                    if not core.has_work():
                        self._idle = together.wait_for_wave()
                        yield self._idle
                        self._idle = None
                        yield clock.after_arrivals(clock.now_ns)
                    continue
                self._steps_without_output += is_unfinished
                yield together.join(self._rank, None).has_begun
            self._num_steps += 1
            if self._num_steps == 1 or self._num_steps % together.sync_interval_steps == 0:
                goes_on = yield together.agree(is_unfinished)
                if not goes_on:
                    self._num_steps = 0

    def _num_unfinished(self) -> int:
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def _submit(self, step: Step) -> None:
        super()._submit(step)
        if step.requests:
            ticket, _ = self._tickets[-1]
            self._passes.append((step, self._lock_step.join(self._rank, ticket.duration_ns)))

    def _outputs_come(self) -> Generator[simpy.Event, Any, None]:
        """Wait for the oldest step in flight, and deliver its outputs."""
        step = self._core.in_flight[0]
        passed = self._passes.popleft()[1] if self._passes and self._passes[0][0] is step else None
        if passed:
            yield passed.has_begun
        result = self._collect_oldest() if passed is None else self._collect_pass(passed)
        yield self._clock.after_arrivals(max(self._device_free_ns, self._clock.now_ns))
        self._process_oldest(result)

    def _collect_pass(self, passed: ForwardPass) -> StepResult:
        ticket, _ = self._tickets.popleft()
        self._device_free_ns = passed.end_ns
        self.recorder.run(passed.start_ns, passed.end_ns)
        return self._executor.collect(ticket)
