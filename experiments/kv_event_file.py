"""``kv_events.jsonl`` of a run folder: the KV events that vLLM would publish, a batch per line.

Names are those of vLLM's ``KVEventBatch`` (spec section 11). ``ts`` is the simulated time in seconds. vLLM publishes
what came of deciding a step and of processing an output in one batch; so does this.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO

from engine.executor import Step
from engine.kv_events import KVEventLog
from workloads.time_units import SECOND_NS

NAME = "kv_events.jsonl"


class KVEventWriter:
    """An observer (`sim.step_observer.StepObserver`) that writes the events of a log to a file."""

    def __init__(self, log: KVEventLog, file: IO[str]) -> None:
        self._log = log
        self._file = file

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled: what it changed is published when an output is processed."""

    def processed(self, step: Step, now_ns: int) -> None:
        """An output was delivered."""
        events = self._log.take()
        if events:
            batch = {
                "ts": now_ns / SECOND_NS,
                "events": [{"type": type(event).__name__} | asdict(event) for event in events],
                "data_parallel_rank": 0,
            }
            self._file.write(json.dumps(batch) + "\n")
