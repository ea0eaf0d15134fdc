"""A replay that is kept in a folder, and a replay that is in none but is read like one."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayCommandOptions
from kvtwin.experiments.records.event_recording import EventFolder, event_folder
from kvtwin.experiments.records.folder import check_free, run_files, write_run_folder
from kvtwin.experiments.records.reader import Columns, Run
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.runs.replicas import ReplayedReplicas
from kvtwin.experiments.runs.spread import spread_of
from kvtwin.sim.recording import RequestColumns, StepColumns
from kvtwin.workloads.workload import Workload


def replay_and_keep(
    options: ReplayCommandOptions,
    workload: Workload | None = None,
    *,
    show: Callable[[Replayed], object] = lambda _: None,
    show_progress: bool = True,
) -> Replayed:
    """Replay the trace of ``options``, or ``workload`` instead, and write the folder ``--out``, if there is one.

    ``show`` gets the result first, and the folder is written even if it fails: neither is lost with the other.

    UserError: settings that cannot be, or a folder that cannot be made.
    """
    if options.out:
        check_free(options.out)
    with event_folder(options) as streamed:
        replayed = replay(options, workload, show_progress=show_progress, events=streamed)
        if options.spread:
            replayed.summary["spread"] = spread_of(replayed.summary, options, workload, show_progress=show_progress)
        try:
            show(replayed)
        finally:
            if options.out:
                _keep(options.out, replayed.files(), streamed)
    return replayed


def _keep(folder: Path, files: dict[str, bytes], streamed: EventFolder | None) -> None:
    """Write the run's folder, without what the disk did not take during the run. UserError: that, or anything else."""
    left_out = streamed.drop_failed() if streamed else []
    write_run_folder(folder, files, streamed.path if streamed else None)
    if left_out:
        raise UserError(f"--out {folder}: kept without {', '.join(left_out)}")


@dataclass(frozen=True)
class RunInMemory(Run):
    """A replay, for whatever reads the folder of a run; ``path`` is only a name."""

    parts: RunParts

    def __post_init__(self) -> None:
        """There is no folder to check."""

    @classmethod
    def of(cls, replayed: Replayed, name: str) -> RunInMemory:
        """What ``replayed`` found, without the simulated server, which may be large."""
        recorder = replayed.recorder
        replicas = replayed.replicas if isinstance(replayed, ReplayedReplicas) else ()
        parts = RunParts(
            replayed.configuration,
            replayed.summary,
            replayed.machine,
            recorder.requests,
            recorder.steps,
            [cls.of(replica, f"{name}/replica-{number}") for number, replica in enumerate(replicas)],
        )
        return cls(Path(name), parts)

    @cached_property
    def configuration(self) -> Any:
        return self.parts.configuration

    @cached_property
    def summary(self) -> dict[str, Any]:
        return self.parts.summary

    @cached_property
    def machine(self) -> dict[str, Any]:
        return self.parts.machine

    @cached_property
    def requests(self) -> Columns:
        return columns_of(self.parts.requests)

    @cached_property
    def steps(self) -> Columns:
        return columns_of(self.parts.steps)

    @cached_property
    def replicas(self) -> list[Run]:
        return list(self.parts.replicas)

    def files(self) -> dict[str, bytes]:
        files = run_files(self.parts, self.configuration, self.summary, self.machine)
        for replica in self.parts.replicas:
            files |= {f"{replica.path.name}/{name}": content for name, content in replica.files().items()}
        return files


class RunParts(NamedTuple):
    """What a run leaves."""

    configuration: dict[str, Any]
    summary: dict[str, Any]
    machine: dict[str, Any]
    requests: RequestColumns
    steps: StepColumns
    replicas: list[RunInMemory]


def columns_of(recorded: RequestColumns | StepColumns) -> Columns:
    """Columns as a Parquet file has them: integers and texts."""
    values = {field.name: getattr(recorded, field.name) for field in fields(recorded)}
    return {
        name: as_array(column) if isinstance(column, array) else np.array(column, dtype=object)
        for name, column in values.items()
    }
