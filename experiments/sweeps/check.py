"""What is wrong with a sweep before its first point runs: traces, files, names and columns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtwin.experiments.catalogue.gpus import load_gpu
from kvtwin.experiments.catalogue.models import load_model
from kvtwin.experiments.errors import UserError, nearest
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.trace import DEMO
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.setup.step_time import load_step_time
from kvtwin.experiments.sweeps.spec import SweepSpec
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.files import trace_files
from kvtwin.workloads.formats.in_memory import workload_of
from kvtwin.workloads.request_record import RequestRecord

_MOST_TRIED = 20
"""Points that are asked for their figures, until one can tell."""


def check_sweep(spec: SweepSpec, *, has_workload: bool = False) -> None:
    """UserError: a trace, a file or a name in some point's options is wrong, or a column is no figure.

    ``has_workload``: the points' traces are not read. What only some settings forbid, such as too little memory, is no
    mistake here: such a point fails, and the others run.
    """
    if not has_workload:
        for trace in sorted({point.options.trace for point in spec.points}):
            _check_trace(trace)
    for read, names in (
        (load_gpu, {point.options.gpu for point in spec.points}),
        (load_model, {point.options.model for point in spec.points}),
        (load_step_time, {Path(name) for point in spec.points if os.path.isfile(name := point.options.step_time)}),
    ):
        for name in sorted(name for name in names if name is not None):
            read(name)
    _check_columns(spec)


def _check_trace(trace: str) -> None:
    if trace == DEMO:
        return
    for path in trace_files(trace):
        if not path.exists():
            raise UserError(f"{path}: cannot be read: there is no such file")


def _check_columns(spec: SweepSpec) -> None:
    """UserError: a column that no replay has. Which there are depends on the options."""
    known = dict.fromkeys(spec.axes)
    missing = [column for column in spec.columns if column not in known]
    for point in spec.points[:_MOST_TRIED]:
        if not missing:
            return
        known |= dict.fromkeys(_figures(point.options))
        missing = [column for column in missing if column not in known]
    if missing and len(known) > len(spec.axes):
        hint = nearest(missing[0], known, 0.5, most=3)
        raise UserError(f"columns: {missing[0]}: no key of a replay's summary{hint}")


def _figures(options: ReplayOptions) -> dict[str, Any]:
    """The summary of a replay of two short turns; empty where these options allow none."""
    short = replace(options, out=None, num_prompts=None, warmup_requests=0, num_sessions=None, strict=False)
    try:
        return replay(short, workload_of(_two_turns())).summary
    except (UserError, WorkloadError):
        return {}


def _two_turns() -> Iterator[RequestRecord]:
    for turn in range(2):
        yield RequestRecord(
            request_id=str(turn),
            arrival_ns=0,
            prompt_tokens=2 + 2 * turn,
            output_tokens=2,
            token_ids=list(range(2 + 2 * turn)),
            session="s",
            think_time_ns=1 if turn else None,
        )
