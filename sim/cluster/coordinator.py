"""vLLM's coordinator: what front ends are told of the load of all engines, and when (specification, section 17.2)."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.sim.cluster.load import Load
from kvtwin.workloads.time_units import MILLISECOND_NS

_CHANGED_MS, _IDLE_MS = 100, 5000
"""At least so long after the latest publication comes the next one, if something changed, and if nothing did."""

_STEP_MS = 50
"""How long engines that step together are waited for, until all have told of the same step."""


class Coordinator:
    """Publishes the load of all engines, late. Time comes with the calls: nothing happens in between.

    It counts time in whole milliseconds, as vLLM does: each message that it gets makes it wait anew for what is left of
    the interval, so publications drift by parts of a millisecond. A message that comes just when a publication is due
    is in it.
    """

    def __init__(self, num_engines: int, *, steps_together: bool = False, started_ns: int = 0) -> None:
        """``steps_together``: engines agree on each step, and a publication is about the end of one."""
        self.published: list[Load] = [Load(0, 0, 0.0)] * num_engines
        """The latest publication that :meth:`advance_to` came past."""
        self.num_publications = 0
        self._latest = list(self.published)
        self._steps_together = steps_together
        self._step = (-1, -1)
        self._of_last_step: list[Load] | None = None
        self._changed = False
        self._last_published_ms: int | None = None
        """None before the first one, which comes at once."""
        self.due_ns = started_ns
        """When the next publication comes, if no message does before."""
        self._wait_from(started_ns)

    def receive(self, engine: int, load: Load, now_ns: int, step: tuple[int, int] = (0, 0)) -> None:
        """An engine tells its load. ``step`` is the wave and the number of the step where engines step together."""
        self.advance_to(now_ns - 1)
        if self._steps_together and step > self._step:
            if self._changed:
                self._of_last_step = list(self._latest)
            self._step = step
        self._latest[engine] = load
        self._changed = True
        self._wait_from(now_ns)

    def advance_to(self, now_ns: int) -> Sequence[Load]:
        """Publish all that is due by now; return the latest publication."""
        while self.due_ns <= now_ns:
            self._publish(self.due_ns)
        return self.published

    def _publish(self, now_ns: int) -> None:
        if self._of_last_step is not None:
            self.published, self._of_last_step = self._of_last_step, None
        else:
            self.published, self._changed = list(self._latest), False
        self.num_publications += 1
        self._last_published_ms = now_ns // MILLISECOND_NS
        self._wait_from(now_ns)

    def _wait_from(self, now_ns: int) -> None:
        least_ms = _STEP_MS if self._steps_together and self._of_last_step is None else 0
        wait_ms = least_ms
        if self._last_published_ms is not None:
            elapsed_ms = now_ns // MILLISECOND_NS - self._last_published_ms
            wait_ms = max(least_ms, (_CHANGED_MS if self._changed else _IDLE_MS) - elapsed_ms)
        self.due_ns = now_ns + wait_ms * MILLISECOND_NS
