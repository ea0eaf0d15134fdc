"""The executor that repeats: what a measured run delivered, when it delivered it."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.engine.executor import Executor, Step, StepResult


class RecordEndsError(Exception):
    """The record has no output for a step: it ends before, or the measured run decided otherwise."""


class ReplayedExecutor(Executor[Step]):
    """Gives back durations and output tokens of a measured run, step by step.

    A simulation that is fed with it arrives at the decisions of that run (:mod:`kvtwin.sim.decision_check`).
    """

    def __init__(self, executed: Sequence[ExecutedStep]) -> None:
        self._left = iter(executed)
        self.lacks_outputs = False
        """Whether the record has ended: nothing more can be simulated."""

    def submit(self, step: Step) -> Step:
        """The step itself: there is nothing to be done."""
        return step

    def collect(self, ticket: Step) -> StepResult:
        """What the record says of the step. RecordEndsError: it says nothing of it, or it is of another step."""
        executed = next(self._left, None)
        if executed is None or executed.index != ticket.index:
            raise self._ends(f"step {ticket.index} is not in the record")
        delivered = dict(zip(executed.request_ids, executed.tokens, strict=True))
        tokens = [delivered.get(request.request_id, ()) for request in ticket.requests]
        if [bool(token_ids) for token_ids in tokens] != ticket.samples:
            raise self._ends(f"step {ticket.index}: the record has the output of other requests")
        return StepResult(executed.duration_ns, tokens)

    def _ends(self, why: str) -> RecordEndsError:
        self.lacks_outputs = True
        return RecordEndsError(why)
