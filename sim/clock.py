"""The clock: a SimPy environment whose time is integer nanoseconds."""

from __future__ import annotations

import gc
from collections.abc import Callable
from heapq import heappop, heappush

import simpy
from simpy.events import EventPriority

_AFTER_ARRIVALS, _AFTER_OUTPUTS = EventPriority(2), EventPriority(3)
"""Behind SimPy's NORMAL, which is 1."""

_OBJECTS_BETWEEN_SEARCHES = 200_000


class _Late(simpy.Event):
    """A ``simpy.Timeout`` that comes behind other events of its instant."""

    def __init__(self, environment: simpy.Environment, delay_ns: int, priority: EventPriority) -> None:
        if delay_ns < 0:
            raise ValueError(f"delay_ns: expected at least 0, got {delay_ns}")
        super().__init__(environment)
        self._ok = True
        self._value = None
        environment.schedule(self, priority, delay_ns)


class Clock:
    """Simulated time since the start of the workload. It never goes back."""

    def __init__(self) -> None:
        self.environment = simpy.Environment()
        self._calls_ns: list[int] = []
        """Of :meth:`call_at`, as far as they have not come, the earliest first."""

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return int(self.environment.now)

    @property
    def next_ns(self) -> int | None:
        """When the next event is due; None if there is none."""
        time = self.environment.peek()
        return None if time == simpy.core.Infinity else int(time)

    def run(self) -> None:
        """Let the time pass until nothing is planned.

        Python looks for cycles of dead objects seldom meanwhile: a run leaves hardly any, and each search visits all
        that lives, which takes a sixth of the time of a long run.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES, *thresholds[1:])
        try:
            self.environment.run()
        finally:
            gc.set_threshold(*thresholds)

    @property
    def next_call_ns(self) -> int | None:
        """When a function is called next that :meth:`call_at` was given; None: never."""
        return self._calls_ns[0] if self._calls_ns else None

    def call_at(self, time_ns: int, function: Callable[[simpy.Event], None]) -> None:
        """Call ``function`` at ``time_ns``, with an event that it may ignore. ValueError: the instant has passed."""
        event = self.environment.timeout(time_ns - self.now_ns)
        heappush(self._calls_ns, time_ns)
        assert event.callbacks is not None
        event.callbacks += [self._call_comes, function]

    def _call_comes(self, _event: simpy.Event) -> None:
        heappop(self._calls_ns)

    def after_arrivals(self, time_ns: int) -> simpy.Event:
        """An event at ``time_ns``, behind arrivals of that instant. ValueError: the instant has passed."""
        return _Late(self.environment, time_ns - self.now_ns, _AFTER_ARRIVALS)

    def after_outputs(self, time_ns: int) -> simpy.Event:
        """An event at ``time_ns``, behind those of :meth:`after_arrivals`. ValueError: the instant has passed.

        Of several engines on one clock none schedules before all have delivered what ends at that instant: whoever
        waited for it sends to any of them.
        """
        return _Late(self.environment, time_ns - self.now_ns, _AFTER_OUTPUTS)
