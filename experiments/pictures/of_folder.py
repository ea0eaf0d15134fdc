"""The pictures of what a folder holds: a run or a sweep."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

from kvtwin.experiments.display.values import is_number
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.pictures import replicas as replica_pictures
from kvtwin.experiments.pictures import run as run_pictures
from kvtwin.experiments.pictures import shares
from kvtwin.experiments.pictures import sweep as sweep_pictures
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.sweeps.folder import read_sweep


def pictures_of(folder: Path, metrics: tuple[str, ...] = ()) -> dict[str, Any]:
    """Figures by name. ``metrics`` are keys of a sweep's summaries, instead of hit rate and preemptions.

    UserError: neither a run nor a sweep, or nothing to draw.
    """
    return _of_sweep(folder, metrics) if (folder / "sweep.yaml").is_file() else _of_run(folder, metrics)


def _of_run(folder: Path, metrics: tuple[str, ...]) -> dict[str, Any]:
    if metrics:
        raise UserError(f"--metrics: only for sweeps; {folder} is a run")
    shown = Run(folder)
    return {
        "timeline": replica_pictures.timelines(shown) if shown.replicas else run_pictures.timeline(shown),
        "latencies": run_pictures.latencies(shown),
        "misses": shares.misses([shown.summary], [shown.title]),
    }


def _of_sweep(folder: Path, metrics: tuple[str, ...]) -> dict[str, Any]:
    axes, rows = read_sweep(folder)
    rows = [row for row in rows if row.get("error") is None]
    drawn = sweep_pictures.METRICS
    if metrics:
        known = {key for row in rows for key, value in row.items() if isinstance(value, int | float)}
        if unknown := [name for name in metrics if name not in known]:
            raise UserError(f"--metrics: {unknown[0]}: no number in the summaries of {folder}")
        drawn = tuple(sweep_pictures.Metric(name, name) for name in metrics)
    numbers = [
        name
        for name in axes
        if rows and all(is_number(row.get(name)) for row in rows) and len({row[name] for row in rows}) > 1
    ]
    if not rows or (metrics and not numbers):
        raise UserError(f"{folder}: nothing to draw: no numeric option differs between its points")
    figures = {}
    for name in numbers:
        others = tuple(other for other in axes if other != name and len({row.get(other) for row in rows}) > 1)
        figures[f"over-{name}"] = sweep_pictures.lines(rows, name, others, drawn)
    if len(axes) == 2:
        for x, y in combinations(numbers, 2):
            figures[f"{x}-by-{y}"] = sweep_pictures.heatmap(rows, x, y, drawn)
    if not metrics:
        names = [", ".join(_shown(row.get(name)) for name in axes) for row in rows]
        figures["misses"] = shares.misses(rows, names, ", ".join(axes))
        if memory := shares.memory(rows, names, ", ".join(axes)):
            figures["memory"] = memory
    return figures


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
