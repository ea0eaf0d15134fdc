"""How long a step takes: on a GPU by its own clock, on a CPU by the time that the thread really had."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

MILLISECOND_NS = 1_000_000


@dataclass(slots=True)
class StepTimer:
    """Takes the times of one step. To be made when the host begins to prepare it.

    On a CPU the device's work is done by the host's thread, which other programs interrupt; so its time is CPU time.
    """

    device: torch.device
    _host_started_ns: int = 0
    _host_ns: int = 0
    _started: Any = 0
    _ended: Any = 0
    _delivered: Any = 0

    def __post_init__(self) -> None:
        self._host_started_ns = self._host_clock_ns()

    def start_device(self) -> None:
        """The step's own work is enqueued from here on."""
        self._started = self._mark()

    def end_device(self) -> None:
        """The step's own work is enqueued."""
        self._ended = self._mark()

    def end_host(self) -> None:
        """All is enqueued, copies of results to the host too."""
        self._delivered = self._mark()
        self._host_ns = self._host_clock_ns() - self._host_started_ns

    def wait(self) -> tuple[int, int]:
        """Wait until all is done. Nanoseconds that the device took, and the host beside it."""
        if self.device.type == "cpu":
            duration_ns = self._ended - self._started
            return duration_ns, self._host_ns - duration_ns
        self._delivered.synchronize()
        return round(self._started.elapsed_time(self._ended) * MILLISECOND_NS), self._host_ns

    def _mark(self) -> Any:
        if self.device.type == "cpu":
            return time.thread_time_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _host_clock_ns(self) -> int:
        return time.thread_time_ns() if self.device.type == "cpu" else time.perf_counter_ns()
