"""All points of a sweep: what is finished, what is left, and a row of figures for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from typing import Any

from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.ending import Ended, ended_by
from kvtwin.experiments.records.folder import SUMMARY
from kvtwin.experiments.sweeps.executors import local_processes
from kvtwin.experiments.sweeps.folder import SweepFolder
from kvtwin.experiments.sweeps.runner import run_points
from kvtwin.experiments.sweeps.spec import SweepPoint, SweepSpec
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.workload import Workload


def run_sweep(
    spec: SweepSpec,
    folder: SweepFolder | None = None,
    make_executor: Callable[[], Executor] | None = None,
    workload: Workload | None = None,
    show: Callable[[list[dict[str, Any]]], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """One row per point, in order: the options that it varies, and its summary or an ``error``.

    ``folder`` keeps the run of each point, and what is finished there is not run again. Points run on
    ``make_executor``'s processes; None: one per CPU of this machine. ``workload``, if given, is sent instead of their
    traces. ``show`` gets the rows before the folder gets its table, and also where the folder could not keep a point.

    UserError: the folder cannot be written.
    """
    try:
        rows, not_kept = _run(spec, folder, make_executor or local_processes(None, len(spec.points)), workload)
    except KeyboardInterrupt as interrupt:
        if folder is None:
            raise
        num_kept = sum(folder.is_finished(point) for point in spec.points)
        kept = f"{num_kept:,} of {number_of(len(spec.points), 'point')} in {folder.path}; go on with --resume"
        raise Ended(ended_by(interrupt), f"interrupted: {kept}") from None
    try:
        show(rows)
    finally:
        if folder and not not_kept:
            folder.keep_results(rows)
    if not_kept:
        others = f" (and of {len(not_kept) - 1} more)" if len(not_kept) > 1 else ""
        raise UserError(f"{not_kept[0]}: a point's run was not saved{others}; make room, and go on with --resume")
    return rows


def _run(
    spec: SweepSpec,
    folder: SweepFolder | None,
    make_executor: Callable[[], Executor],
    workload: Workload | None,
) -> tuple[list[dict[str, Any]], list[UserError]]:
    """One row per point, in order: its varied options, and its summary or an error; and why points were not kept."""
    rows: dict[int, dict[str, Any]] = {}
    not_kept: list[UserError] = []
    left = []
    for point in spec.points:
        if folder and folder.is_finished(point):
            rows[point.index] = _row(point, folder.summary(point))
        else:
            left.append(point)
    with ExitStack() as stack:
        bar = stack.enter_context(progress("sweep", "points", len(spec.points), initial=len(rows)))
        running = run_points(left, make_executor, workload, only_summaries=folder is None)
        outcomes = stack.enter_context(closing(running))
        for point, outcome in outcomes:
            if isinstance(outcome, str):
                rows[point.index] = _row(point, {"error": outcome})
            else:
                if folder:
                    try:
                        folder.keep(point, outcome)
                    except UserError as error:
                        not_kept.append(error)
                rows[point.index] = _row(point, json.loads(outcome[SUMMARY]))
            bar.update(1)
    return [rows[index] for index in sorted(rows)], not_kept


def _row(point: SweepPoint, figures: dict[str, Any]) -> dict[str, Any]:
    return {"point": point.index} | dict(point.varied) | figures
