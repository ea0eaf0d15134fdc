"""The engine's loop: schedule ahead of the results, as far as the configuration allows (specification, section 8.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvtwin.engine.executor import Step
from kvtwin.engine.server import ServerScheduler


class EngineCore:
    """A scheduler with the steps that were scheduled and whose output was not processed yet.

    One iteration is :meth:`schedule_next`, then, if :meth:`must_collect`, processing of the oldest step with
    :meth:`process`. Synchronous scheduling keeps one step in flight, asynchronous two. Whoever drives the loop
    knows executor and clock; this class knows neither.
    """

    def __init__(self, scheduler: ServerScheduler) -> None:
        self.scheduler = scheduler
        self.in_flight: deque[Step] = deque()
        self._may_run_ahead = False

    def has_work(self) -> bool:
        """Whether another iteration is due without new requests."""
        return bool(self.in_flight) or self.scheduler.has_requests()

    def schedule_next(self) -> Step | None:
        """Schedule a step and count it as in flight; None when nothing is there to schedule."""
        self._may_run_ahead = False
        if not self.scheduler.has_requests():
            return None
        step = self.scheduler.schedule()
        self.in_flight.append(step)
        if len(self.in_flight) < self.scheduler.config.max_steps_in_flight:
            self._may_run_ahead = step.total_tokens > 0 or self.scheduler.has_requests()
        return step

    def must_collect(self) -> bool:
        """Whether the iteration has to wait for the oldest step in flight."""
        return bool(self.in_flight) and not self._may_run_ahead

    def process(self, tokens: Sequence[Sequence[int]], num_drafts: Sequence[int] = ()) -> Step:
        """Deliver the output of the oldest step in flight and return that step."""
        step = self.in_flight.popleft()
        self.scheduler.update(step, tokens, num_drafts)
        return step
