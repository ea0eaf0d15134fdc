"""The load of an engine, as it tells it to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvtwin.engine.executor import Step
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.serving import ServerSimulation


class Load(NamedTuple):
    """What an engine tells of itself."""

    waiting: int
    running: int
    usage: float
    """Share of its blocks that are held."""


def load_of(server: ServerSimulation) -> Load:
    """The load of an engine at the present instant, as vLLM counts it."""
    pool = server.scheduler.kv_cache.pool
    usage = 1.0 - pool.num_free_blocks / pool.num_usable_blocks
    return Load(*server.num_requests, usage)


Report = Callable[[int, Load, int, tuple[int, int]], None]
"""Hears of a replica's load: its number, the load, when, and the wave and step of replicas that step together."""


class LoadReporter(ServerObserver):
    """Tells the load of one engine between steps, if the number of waiting or of running requests changed."""

    looks_into_steps = False
    looks_at_turns = True

    def __init__(self, replica: int, server: ServerSimulation, report: Report) -> None:
        self._replica = replica
        self._server = server
        self._report = report
        self._counts = (0, 0)

    def turns(self, now_ns: int) -> None:
        waiting, running = self._server.num_requests
        counts = (waiting - self._server.num_unseen_requests, running)
        if counts != self._counts:
            self._counts = counts
            load = load_of(self._server)._replace(waiting=counts[0])
            self._report(self._replica, load, now_ns, self._server.step_stamp)

    stepped = turns


class Metrics(ServerObserver):
    """A server's metrics, which are set when an output is delivered and read by the router at regular times."""

    looks_into_steps = False
    looks_at_turns = True

    def __init__(self, server: ServerSimulation, interval_ns: int) -> None:
        self._server = server
        self._interval_ns = interval_ns
        self._read = self._set = Load(0, 0, 0.0)
        self._set_ns = 0
        """When the latest values were set."""

    def processed(self, step: Step, now_ns: int) -> None:
        self._read = self.at(now_ns - 1)
        self._set, self._set_ns = load_of(self._server), now_ns

    def at(self, now_ns: int) -> Load:
        """What was read last, at a multiple of the interval."""
        read_ns = now_ns // self._interval_ns * self._interval_ns if self._interval_ns else now_ns
        return self._set if self._set_ns <= read_ns else self._read
