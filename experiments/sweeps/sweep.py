"""All points of a sweep: what is finished, what is left, and a row of figures for each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from tqdm import tqdm

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.trace import DEMO
from kvtwin.experiments.runs.facts import PROGRESS_DELAY_S
from kvtwin.experiments.sweeps.executors import local_processes
from kvtwin.experiments.sweeps.folder import SweepFolder
from kvtwin.experiments.sweeps.runner import run_points
from kvtwin.experiments.sweeps.spec import SweepPoint, SweepSpec
from kvtwin.workloads.workload import Workload


def run_sweep(
    spec: SweepSpec,
    folder: SweepFolder | None = None,
    make_executor: Callable[[], Executor] | None = None,
    workload: Workload | None = None,
) -> list[dict[str, Any]]:
    """One row per point, in order: the options that it varies, and its summary or an ``error``.

    ``folder`` keeps the run of each point, and what is finished there is not run again. Points run on
    ``make_executor``'s processes; None: one per CPU of this machine. ``workload``, if given, is sent instead of their
    traces. UserError: a trace is not there.
    """
    if workload is None:
        check_traces(spec)
    rows = _run(spec, folder, make_executor or local_processes(None, len(spec.points)), workload)
    if folder:
        folder.keep_results(rows)
    return rows


def check_traces(spec: SweepSpec) -> None:
    """UserError if a point's trace does not exist, before anything is run or written."""
    for trace in sorted({point.options.trace for point in spec.points}):
        if trace != DEMO and not os.path.exists(trace):
            raise UserError(f"{trace}: cannot be read: there is no such file")


def _run(
    spec: SweepSpec,
    folder: SweepFolder | None,
    make_executor: Callable[[], Executor],
    workload: Workload | None,
) -> list[dict[str, Any]]:
    """One row per point, in order: its varied options, and its summary or an error."""
    rows: dict[int, dict[str, Any]] = {}
    left = []
    for point in spec.points:
        if folder and folder.is_finished(point):
            rows[point.index] = _row(point, folder.summary(point))
        else:
            left.append(point)
    with tqdm(
        total=len(spec.points),
        initial=len(rows),
        unit="point",
        delay=PROGRESS_DELAY_S,
        leave=False,
        desc="sweep",
        file=sys.stderr,
    ) as bar:
        for point, outcome in run_points(left, make_executor, workload):
            if isinstance(outcome, str):
                rows[point.index] = _row(point, {"error": outcome})
            else:
                if folder:
                    folder.keep(point, outcome)
                rows[point.index] = _row(point, json.loads(outcome["summary.json"]))
            bar.update()
    return [rows[index] for index in sorted(rows)]


def _row(point: SweepPoint, figures: dict[str, Any]) -> dict[str, Any]:
    return {"point": point.index} | dict(point.varied) | figures
