"""The pictures of what a folder holds: a run, a sweep, a validation, or another command's result."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from kvtwin.experiments.display.values import is_number, short_texts
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.pictures import shares
from kvtwin.experiments.pictures import sweep as sweep_pictures
from kvtwin.experiments.pictures.curve import CURVE, capacity_curve, curve_heading
from kvtwin.experiments.pictures.figure import Heading
from kvtwin.experiments.pictures.isolation import isolation
from kvtwin.experiments.pictures.limits import limits, over_rate
from kvtwin.experiments.pictures.of_run import heading_of, pictures_of_run
from kvtwin.experiments.pictures.validation import VALIDATION, validation
from kvtwin.experiments.records import result_file
from kvtwin.experiments.records.reader import Run, written_by_this_version
from kvtwin.experiments.records.result_file import Result, read_result
from kvtwin.experiments.runs.validation_folder import is_validation, read_validation
from kvtwin.experiments.sweeps.folder import read_sweep, read_sweep_plan

Figures = dict[str, Figure]


class Pictures(NamedTuple):
    """The figures of a folder, and what made it."""

    figures: Figures
    command: str


def pictures_of(folder: Path, metrics: tuple[str, ...] = ()) -> Pictures:
    """All that can be drawn. ``metrics`` are keys of a sweep's summaries, instead of hit rate and preemptions.

    UserError: nothing that a command left, or nothing to draw.
    """
    is_sweep = (folder / "sweep.yaml").is_file()
    if metrics and not is_sweep:
        raise UserError(f"--metrics: only for sweeps; {folder} is none")
    if is_sweep:
        return _of_sweep(folder, metrics)
    if (folder / result_file.NAME).is_file():
        return pictures_of_result(read_result(folder))
    if is_validation(folder):
        return _of_validation(folder)
    run = Run(folder)
    with written_by_this_version(folder):
        return Pictures(pictures_of_run(run), heading_of(run).command)


def pictures_of_result(result: Result) -> Pictures:
    """Figures of what ``curve``, ``limit`` or ``isolation`` found. UserError: no such command."""
    drawn: dict[str, dict[str, tuple[Callable[..., Figure], str]]] = {
        "curve": {"curve": (lambda facts: capacity_curve(facts, {}), CURVE)},
        "limit": {
            "limits": (limits, "Up to which rate the limits hold"),
            "over-rate": (over_rate, "What is limited, over the rate"),
        },
        "isolation": {"isolation": (isolation, "What response times tell other tenants, and what salts cost")},
    }
    if result.command not in drawn:
        raise UserError(f"{result_file.NAME}: there are no pictures of kvtwin {result.command}")
    facts = result.facts
    if result.command == "curve":
        heading = curve_heading(facts, result.command_line)
    else:
        heading = Heading(f"{Path(facts['trace']).name}: {facts['model']}", result.command_line)
    figures = {name: heading.on(draw(facts), what) for name, (draw, what) in drawn[result.command].items()}
    return Pictures(figures, result.command_line)


def _of_validation(folder: Path) -> Pictures:
    _, measured, predicted, times = read_validation(folder)
    heading = heading_of(measured)
    drawn = heading.on(validation(measured, predicted, times), VALIDATION)
    return Pictures({"validate": drawn}, heading.command)


def _of_sweep(folder: Path, metrics: tuple[str, ...]) -> Pictures:
    axes, every_row = read_sweep(folder)
    rows = [row for row in every_row if row.get("error") is None]
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
    plan = read_sweep_plan(folder)
    traces = {Path(arguments[0]).name for arguments in plan.arguments}
    models = {str(row["model_id"]) for row in rows}
    num_failed = len(every_row) - len(rows)
    about = [", ".join(sorted(traces)), ", ".join(sorted(models))]
    about += [f"{num_failed} of {len(every_row)} points failed and are left out"] if num_failed else []
    heading = Heading("; ".join(about), plan.command)
    words = " and ".join(metric.label.partition(" (")[0] for metric in drawn)
    figures = {}
    for name in numbers:
        others = tuple(other for other in axes if other != name and len({str(row.get(other)) for row in rows}) > 1)
        figures[f"over-{name}"] = heading.on(
            sweep_pictures.lines(rows, name, others, drawn), f"{words.capitalize()} over {name}"
        )
    if len(axes) == 2:
        for x, y in combinations(numbers, 2):
            figures[f"{x}-by-{y}"] = heading.on(
                sweep_pictures.heatmap(rows, x, y, drawn), f"{words.capitalize()} by {x} and {y}"
            )
    if not metrics:
        settings = [short_texts([row.get(name) for row in rows]) for name in axes]
        names = [", ".join(each) for each in (zip(*settings, strict=True) if axes else [()] * len(rows))]
        varied = ", ".join(axes)
        over = f" by {varied}" if varied else ""
        figures["misses"] = heading.on(shares.misses(rows, names, varied), f"Hits and sources of misses{over}")
        if memory := shares.memory(rows, names, varied):
            figures["memory"] = heading.on(memory, f"Use of the memory while requests wait{over}")
    return Pictures(figures, plan.command)
