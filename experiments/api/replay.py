"""A simulated server is sent a workload."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.api.given import WorkloadSource, given_options, source_of
from kvtwin.experiments.api.keeping import returned_in_any_case
from kvtwin.experiments.api.run import Run
from kvtwin.experiments.options.replay import ReplayCommandOptions
from kvtwin.experiments.runs.kept import RunInMemory, replay_and_keep


def replay(workload: WorkloadSource, *, progress: bool = True, **options: Any) -> Run:
    """Simulate a server that is sent ``workload``, and tell what came of it.

    ``workload`` is a file, ``demo``, what `open_workload` opened, or `RequestRecord` objects. ``options`` are those of
    ``kvtwin replay --help``: ``model``, ``gpu``, ``block_size``, ``request_rate``, ...; with ``out`` the run is kept in
    a new folder, and ``events=True`` adds its events there; where it cannot be written, a RuntimeWarning says so.
    ``progress`` shows a bar after five seconds.

    UserError: settings that cannot be. WorkloadError: a workload that cannot be read. It is no error when nothing was
    completed: see ``summary["completed"]`` and ``summary["verdicts"]``.
    """
    path, opened = source_of(workload, options)
    read = given_options(ReplayCommandOptions, "kvtwin replay", options, trace=path)
    replayed = returned_in_any_case(lambda show: replay_and_keep(read, opened, show=show, show_progress=progress))
    return Run(RunInMemory.of(replayed, str(read.out or "replay")), replayed.heading)
