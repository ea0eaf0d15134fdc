"""The clock: a SimPy environment whose time is integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority


class _AfterArrivals(simpy.Event):
    """A ``simpy.Timeout`` that comes behind all other events of its instant."""

    _PRIORITY = EventPriority(2)
    """Behind SimPy's NORMAL, which is 1."""

    def __init__(self, environment: simpy.Environment, delay_ns: int) -> None:
        if delay_ns < 0:
            raise ValueError(f"delay_ns: expected at least 0, got {delay_ns}")
        super().__init__(environment)
        self._ok = True
        self._value = None
        environment.schedule(self, self._PRIORITY, delay_ns)


class Clock:
    """Simulated time since the start of the workload. It never goes back."""

    def __init__(self) -> None:
        self.environment = simpy.Environment()

    @property
    def now_ns(self) -> int:
        """The present instant."""
        return int(self.environment.now)

    def call_at(self, time_ns: int, function: Callable[[simpy.Event], None]) -> None:
        """Call ``function`` at ``time_ns``, with an event that it may ignore. ValueError: the instant has passed."""
        event = self.environment.timeout(time_ns - self.now_ns)
        assert event.callbacks is not None
        event.callbacks.append(function)

    def after_arrivals(self, time_ns: int) -> simpy.Event:
        """An event at ``time_ns``, behind all others of that instant. ValueError: the instant has passed."""
        return _AfterArrivals(self.environment, time_ns - self.now_ns)
