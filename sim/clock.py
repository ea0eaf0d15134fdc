"""The clock: a SimPy environment whose time is integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

_AFTER_ARRIVALS = EventPriority(2)
"""Behind SimPy's NORMAL: the engine wakes up after everything else of the same instant."""


class Clock:
    """Simulated time since the start of the workload."""

    def __init__(self) -> None:
        self.environment = simpy.Environment()

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return int(self.environment.now)

    def call_at(self, time_ns: int, function: Callable[[simpy.Event], None]) -> None:
        """Call ``function`` at ``time_ns``, with an event that it may ignore."""
        event = self.environment.timeout(time_ns - self.now_ns)
        assert event.callbacks is not None
        event.callbacks.append(function)

    def after_arrivals(self, time_ns: int) -> simpy.Event:
        """An event at ``time_ns``, behind all others of that instant."""
        event = simpy.Event(self.environment)
        event._ok, event._value = True, None
        self.environment.schedule(event, _AFTER_ARRIVALS, time_ns - self.now_ns)
        return event
