"""The faked worker of native offloading: a job is done some steps after it was ordered, or when it is flushed.

The same for the real scheduler and for ours; imports neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class LaggingWorker:
    """``lags``: in turn, for how many steps jobs take, counted from the step that ordered them."""

    lags: list[int]
    step: int = 0
    due: dict[int, int] = field(default_factory=dict)
    loads: dict[int, str] = field(default_factory=dict)
    """Requests of asynchronous loads under way, by job."""

    def take_ended_tables(self) -> list[list[Any]]:
        """Nobody hands blocks on."""
        return []

    def carry_out(self, loads: list[list[Any]], stores: list[list[Any]], flushes: list[int]) -> dict[str, list[Any]]:
        """Take the jobs of a step (as its record has them); what is reported with its result."""
        for job, request_id, is_sync, *_ in loads:
            self.due[job] = self.step if is_sync else self.step + self.lags[job % len(self.lags)]
            if not is_sync:
                self.loads[job] = request_id
        for job, *_ in stores:
            self.due[job] = self.step + max(1, self.lags[job % len(self.lags)])
        done = sorted(job for job, step in self.due.items() if step <= self.step or job in flushes)
        for job in done:
            del self.due[job]
        self.step += 1
        return {"received": [self.loads.pop(job) for job in done if job in self.loads], "jobs": done}
