"""``kvtwin sweep``: replay a trace under many settings, and compare."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Whole
from kvtwin.experiments.options.trace import DEMO
from kvtwin.experiments.runs.facts import PROGRESS_DELAY_S
from kvtwin.experiments.sweeps.executors import dask_cluster, local_processes
from kvtwin.experiments.sweeps.folder import SweepFolder
from kvtwin.experiments.sweeps.point import parse
from kvtwin.experiments.sweeps.runner import run_points
from kvtwin.experiments.sweeps.spec import SweepPoint, SweepSpec, read_sweep_spec
from kvtwin.experiments.sweeps.text import table_lines

EPILOGUE = """\
SPEC.yaml, with any option of `kvtwin replay`, without its dashes:
  trace: demo                      # or a workload file; a TRACE on the command line goes before it
  options:
    num-gpu-blocks-override: 1800
  axes:                            # every combination is replayed, each from a cold cache
    block-size: [16, 32, 64]
    scheduling-policy: [fcfs, priority]
  columns: [prefix_cache_hit_rate, num_preemptions]

An axis "a, b" with lists of two values changes two options together; `points`, a list of options, is combined with the
axes. Keys for `columns` are those of `kvtwin replay --json`.

examples:
  kvtwin sweep block-size.yaml
  kvtwin sweep block-size.yaml my-trace.jsonl.gz --out first-sweep; kvtwin sweep ... --out first-sweep --resume

Exit code: 0; 1 when a point failed; 2 for a mistake in the input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``sweep``."""
    add = parser.add_argument
    add("spec", metavar="SPEC.yaml", type=Path, help="what to replay")
    add("trace", metavar="TRACE", nargs="?", help="workload file, instead of the specification's")
    add("--out", type=Path, metavar="DIR", help="keep every run, and one table, in a new folder")
    add("--resume", action="store_true", help="go on with --out DIR: replay only what is missing")
    add("--dry-run", action="store_true", help="check the specification and print the replays, without running them")
    add("--workers", type=Whole(1, 1024), metavar="N", help="processes of this machine (else one per CPU)")
    add("--dask", metavar="ADDRESS", help="run on a Dask cluster, such as tcp://host:8786 (extra: dask)")
    add("--json", action="store_true", help="print one JSON object per point instead of a table")


def run(args: argparse.Namespace) -> int:
    """Replay every point. Exit code 1 when one failed."""
    spec = read_sweep_spec(args.spec, args.trace)
    _check_points(spec)
    if args.dry_run:
        print("\n".join(f"kvtwin replay {' '.join(point.arguments)}" for point in spec.points))
        return 0
    for trace in sorted({point.arguments[0] for point in spec.points}):
        if trace != DEMO and not os.path.exists(trace):
            raise UserError(f"{trace}: cannot be read: there is no such file")
    if args.resume and not args.out:
        raise UserError("--resume: needs --out DIR")
    folder = SweepFolder(args.out) if args.out else None
    if folder:
        folder.open(spec, args.resume)
    where = dask_cluster(args.dask) if args.dask else local_processes(args.workers, len(spec.points))
    rows = _run(spec, folder, where)
    if folder:
        folder.keep_results(rows)
    failed = sum("error" in row for row in rows)
    if args.json:
        print(json.dumps(rows, indent=2, allow_nan=False))
    else:
        print("\n".join(table_lines(spec, rows)))
    return 1 if failed else 0


def _check_points(spec: SweepSpec) -> None:
    """UserError, before anything runs, if a point's options are not a replay's."""
    for point in spec.points:
        try:
            args = parse(point.arguments)
        except UserError as error:
            raise UserError(f"{spec.path}: {point.label}: {error}") from None
        if args.out or args.json:
            raise UserError(f"{spec.path}: {point.label}: --out and --json are the sweep's own")
        if args.events or args.kv_events:
            raise UserError(f"{spec.path}: {point.label}: --events and --kv-events are for a single replay")


def _run(spec: SweepSpec, folder: SweepFolder | None, make_executor: Callable[[], Executor]) -> list[dict[str, Any]]:
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
        for point, outcome in run_points(left, make_executor):
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
