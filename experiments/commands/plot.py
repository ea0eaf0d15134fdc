"""``kvtwin plot``: pictures of a run or a sweep."""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

from kvtwin.experiments.display.cells import is_number
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.runs.reader import Run
from kvtwin.experiments.sweeps.folder import read_sweep

EPILOGUE = """\
Of a run: the timeline (cache, requests, preemptions), the distribution of latencies, and where its misses come from. Of
a sweep: hit rate and preemptions over every option with numbers, and as a table over every two of them; of each point
its misses, and what its memory was used for while requests waited. Each as PNG and as SVG.

examples:
  kvtwin plot first-run                       # of `kvtwin replay demo --out first-run`
  kvtwin plot first-sweep --metrics mean_ttft_ms,num_preemptions     # of `kvtwin sweep SPEC.yaml --out first-sweep`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``plot``."""
    add = parser.add_argument
    add("folder", metavar="RUN|SWEEP", type=Path, help="folder of a replay (--out) or of a sweep (--out)")
    add("--out", type=Path, metavar="DIR", help="where to put the pictures (else in the folder itself, under plots)")
    add("--metrics", metavar="KEYS", help="of a sweep: keys of the summary to draw, such as mean_ttft_ms")


def run(args: argparse.Namespace) -> int:
    """Draw, and print the names of the files."""
    is_sweep = (args.folder / "sweep.yaml").is_file()
    figures = _of_sweep(args) if is_sweep else _of_run(args)
    from kvtwin.experiments.pictures.figure import save

    folder = args.out or args.folder / "plots"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            for path in save(figure, folder, name):
                print(path)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror or error}") from None
    return 0


def _of_run(args: argparse.Namespace) -> dict[str, Any]:
    if args.metrics:
        raise UserError(f"--metrics: for sweeps; {args.folder} is none")
    from kvtwin.experiments.pictures import run as pictures
    from kvtwin.experiments.pictures import shares

    shown = Run(args.folder)
    return {
        "timeline": pictures.timeline(shown),
        "latencies": pictures.latencies(shown),
        "misses": shares.misses([shown.summary], [shown.title]),
    }


def _of_sweep(args: argparse.Namespace) -> dict[str, Any]:
    from kvtwin.experiments.pictures import shares
    from kvtwin.experiments.pictures import sweep as pictures

    axes, rows = read_sweep(args.folder)
    rows = [row for row in rows if row.get("error") is None]
    metrics = pictures.METRICS
    if args.metrics:
        known = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
        names = [name.strip() for name in args.metrics.split(",")]
        if unknown := [name for name in names if name not in known]:
            raise UserError(f"--metrics: {unknown[0]}: no number in the summaries of {args.folder}")
        metrics = tuple(pictures.Metric(name, name) for name in names)
    numbers = [
        name
        for name in axes
        if rows and all(is_number(row.get(name)) for row in rows) and len({row[name] for row in rows}) > 1
    ]
    if not rows or (args.metrics and not numbers):
        raise UserError(f"{args.folder}: no option with numbers differs between its points: nothing to draw")
    figures = {}
    for name in numbers:
        others = tuple(other for other in axes if other != name and len({row.get(other) for row in rows}) > 1)
        figures[f"over-{name}"] = pictures.lines(rows, name, others, metrics)
    if len(axes) == 2:
        for x, y in combinations(numbers, 2):
            figures[f"{x}-by-{y}"] = pictures.heatmap(rows, x, y, metrics)
    if not args.metrics:
        names = [", ".join(_shown(row.get(name)) for name in axes) for row in rows]
        figures["misses"] = shares.misses(rows, names, ", ".join(axes))
        if memory := shares.memory(rows, names, ", ".join(axes)):
            figures["memory"] = memory
    return figures


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
