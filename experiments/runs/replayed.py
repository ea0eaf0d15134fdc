"""The results of a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtwin.experiments.records.folder import run_files
from kvtwin.sim.recording import Recorder


@dataclass(frozen=True)
class Replayed:
    """The results of a replay."""

    summary: dict[str, Any]
    """The figures under the keys of docs/output.md."""
    heading: list[str]
    """Lines that say what was simulated."""
    recorder: Recorder
    configuration: dict[str, Any]
    """Everything resolved that decided the run."""
    machine: dict[str, Any]
    """When and where it ran."""

    def files(self) -> dict[str, bytes]:
        """The files of the run's folder, by name."""
        return run_files(self.recorder, self.configuration, self.summary, self.machine)
