"""Workloads: opened, and looked at."""

from __future__ import annotations

import os
from typing import Any

from kvtwin.experiments.api.given import WorkloadSource, given_options, source_of
from kvtwin.experiments.options.trace import TraceOptions
from kvtwin.experiments.options.trace_tools import InspectOptions
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.experiments.traces.facts import inspect_workload
from kvtwin.workloads.workload import Workload


def open_workload(path: str | os.PathLike[str], **options: Any) -> Workload:
    """Open a workload file, or ``demo``. It is read once and checked; iterating over it yields `RequestRecord`s.

    ``options`` say how to read it: ``format``, ``timed_trace_chunk_hash_size`` and the others of ``kvtwin replay
    --help``. WorkloadError, with file, line and field: it cannot be read. UserError: a bad option.
    """
    read = given_options(TraceOptions, "kvtwin replay", options, trace=os.fspath(path))
    return open_trace(read.trace, read)


def inspect(workload: WorkloadSource, **options: Any) -> dict[str, Any]:
    """What is in a workload, as ``kvtwin trace inspect --json`` prints it.

    ``options`` are those of the command: ``block_size``, ``max_model_len``, ``top_prefixes`` and how to read the file.
    UserError, WorkloadError: an option or the workload is bad.
    """
    path, opened = source_of(workload, options)
    read = given_options(InspectOptions, "kvtwin trace inspect", options, trace=path)
    opened = opened or open_trace(read.trace, read)
    return inspect_workload(opened, read.block_size, read.max_model_len, read.top_prefixes)
