"""``kv_events.jsonl`` of a run folder: the KV events that vLLM would publish, a batch per line.

Names are those of vLLM's ``KVEventBatch`` (specification, section 11). ``ts`` is the simulated time in seconds. vLLM
publishes what came of deciding a step and of processing an output in one batch; so does this.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO

from kvtwin.engine.executor import Step
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.workloads.time_units import SECOND_NS

NAME = "kv_events.jsonl"


class KVEventWriter(ServerObserver):
    """Writes the events of a log to a file: what deciding a step changed is published when an output is processed."""

    def __init__(self, log: KVEventLog, file: IO[bytes]) -> None:
        self._log = log
        self._file = file

    def processed(self, step: Step, now_ns: int) -> None:
        """An output was delivered."""
        events = self._log.take()
        if events:
            batch = {
                "ts": now_ns / SECOND_NS,
                "events": [{"type": type(event).__name__} | asdict(event) for event in events],
                "data_parallel_rank": 0,
            }
            self._file.write(json.dumps(batch).encode() + b"\n")
