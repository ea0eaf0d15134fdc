"""One point of a sweep: a replay in a worker process, which may be on another machine.

What comes back is the content of the run's folder; only the process that drives the sweep writes files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.trace import FormatOptions
from kvtwin.experiments.records.folder import SUMMARY, json_bytes
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.workload import Workload

T = TypeVar("T")

_MOST_HELD_IDS = 20_000_000
"""Ids of tokens and prefixes that a worker holds in memory for a trace; larger traces are read again for each point."""


def run_point(options: ReplayOptions, workload: Workload | None = None) -> dict[str, bytes] | str:
    """The files of the run's folder, or why it could not be run. ``workload`` is sent instead of the options' trace."""
    return _outcome(lambda: _replay(options, workload).files())


def run_point_for_summary(options: ReplayOptions, workload: Workload | None = None) -> dict[str, bytes] | str:
    """Of these files only the summary, which takes less time."""
    return _outcome(lambda: {SUMMARY: json_bytes(_replay(options, workload).summary)})


def summary_of(options: ReplayOptions, workload: Workload | None = None) -> dict[str, Any] | str:
    """The summary of a replay, of ``workload`` instead of the options' trace, or why it could not be run."""
    return _outcome(lambda: _replay(options, workload).summary)


def _replay(options: ReplayOptions, workload: Workload | None) -> Replayed:
    if workload is not None:
        return replay(options, _held(workload))
    how = FormatOptions(**{field.name: getattr(options, field.name) for field in fields_of(FormatOptions)})
    return replay(options, _opened(options.trace, how))


def _outcome(run: Callable[[], T]) -> T | str:
    try:
        return run()
    except (UserError, WorkloadError) as error:
        return " ".join(str(error).split())
    except MemoryError:
        return "out of memory"


@lru_cache(maxsize=2)
def _opened(path: str, options: FormatOptions) -> Workload:
    """The trace at ``path``, in memory unless it is large."""
    return open_trace(path, options).held(_MOST_HELD_IDS)


@lru_cache(maxsize=2)
def _held(workload: Workload) -> Workload:
    """The workload, in memory unless it is large."""
    return workload.held(_MOST_HELD_IDS)
