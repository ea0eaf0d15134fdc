"""The page about a run, and the page about a sweep."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.display.shares import figure_cell
from kvtwin.experiments.display.tables import as_text
from kvtwin.experiments.display.values import is_number, short_texts
from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.records import result_file
from kvtwin.experiments.records.event_file import has_events
from kvtwin.experiments.records.options import options_of_run
from kvtwin.experiments.records.reader import Run, written_by_this_version
from kvtwin.experiments.records.result_file import read_result
from kvtwin.experiments.report_page import run_figures, sweep_figures
from kvtwin.experiments.report_page.block_map import block_map
from kvtwin.experiments.report_page.page import page
from kvtwin.experiments.report_page.request_table import request_index, request_table
from kvtwin.experiments.report_page.words import sentences, tiles
from kvtwin.experiments.runs.replica_text import replica_parts
from kvtwin.experiments.runs.text import bench_lines, cache_lines
from kvtwin.experiments.runs.validation_folder import is_validation, read_validation
from kvtwin.experiments.sweeps.folder import read_sweep, read_sweep_plan


def page_of(folder: Path) -> str:
    """The HTML page about what ``folder`` holds. UserError: no command left it, or another version did."""
    with written_by_this_version(folder):
        if (folder / "sweep.yaml").is_file():
            return _of_sweep(folder)
        if (folder / result_file.NAME).is_file():
            result = read_result(folder)
            return _of_pictures(folder, f"kvtwin {result.command}", result.text, result.kvtwin_version)
        if is_validation(folder):
            text, measured, _, _ = read_validation(folder)
            version = measured.configuration["kvtwin_version"]
            return _of_pictures(folder, f"Validation: {measured.title}", text, version)
        return _of_run(Run(folder))


def _of_pictures(folder: Path, title: str, text: str, version: str) -> str:
    """A page with what a command printed, and the pictures of it."""
    from kvtwin.experiments.pictures.figure import picture
    from kvtwin.experiments.pictures.of_folder import pictures_of

    figures, command = pictures_of(folder)
    drawn = [picture(figure, "svg").decode("utf-8") for figure in figures.values()]
    return page(
        "result.html.j2",
        figures={},
        title=title,
        text=text,
        pictures=[svg[svg.index("<svg") :] for svg in drawn],
        command=command,
        version=f"kvtwin {version}, which models vLLM {VLLM_VERSION}.",
    )


def _of_run(run: Run) -> str:
    summary, configuration = run.summary, run.configuration
    requests = request_table(run)
    options = options_of_run(configuration)
    return page(
        "run.html.j2",
        figures={
            "timeline": run_figures.usage_of_replicas(run) if run.replicas else run_figures.timeline(run),
            "prefixes": run_figures.routed_prefixes(run) if run.replicas else None,
            "hit-rate": run_figures.hit_rate(run),
            "token-sources": run_figures.token_sources([summary], [""]),
            **run_figures.latencies(run),
        },
        block_map=block_map(run, request_index(requests)) if has_events(run.path) else None,
        requests=requests,
        title=run.title,
        tiles=tiles(summary),
        verdicts=summary["verdicts"],
        sentences=sentences(summary),
        text=as_text(*bench_lines(summary, options), *cache_lines(summary), *replica_parts(summary)),
        command=command_line(configuration["command"], options),
        version=f"kvtwin {configuration['kvtwin_version']}, which models vLLM {configuration['vllm_version']}.",
        configuration=yaml.safe_dump(configuration, sort_keys=False),
    )


_COLUMNS = {
    "prefix_cache_hit_rate": "hit rate (%)",
    "num_preemptions": "preemptions",
    "num_evictions": "evicted blocks",
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "mean_ttft_ms": "mean TTFT (ms)",
    "mean_tpot_ms": "mean TPOT (ms)",
}
"""Keys of the summary that the table of a sweep shows."""


def _of_sweep(folder: Path) -> str:
    axes, rows = read_sweep(folder)
    plan = read_sweep_plan(folder)
    done = [row for row in rows if row.get("error") is None]
    varied = [name for name in axes if len({str(row.get(name)) for row in done}) > 1]
    numbers = [name for name in varied if all(is_number(row.get(name)) for row in done)]
    figures: dict[str, run_figures.Figure | None] = {}
    sections = []
    for name in numbers:
        figures[f"over-{name}"] = sweep_figures.lines(done, name, tuple(other for other in varied if other != name))
        sections.append((f"over-{name}", f"Over {name}", 640))
    if len(varied) == 2:
        for x, y in combinations(numbers, 2):
            figures[f"{x}-by-{y}"] = sweep_figures.heatmap(done, x, y)
            sections.append((f"{x}-by-{y}", f"{x} by {y}", 380))
    settings = [short_texts([row.get(name) for row in done]) for name in axes]
    labels = [
        ", ".join(f"{name} {value}" for name, value in zip(axes, values, strict=True))
        for values in (zip(*settings, strict=True) if axes else [()] * len(done))
    ]
    if figure := run_figures.token_sources(done, labels):
        figures["token-sources"] = figure
        sections.append(("token-sources", "Hits and sources of misses", 150 + 26 * len(done)))
    return page(
        "sweep.html.j2",
        figures=figures,
        title=f"Sweep over {', '.join(axes)}" if axes else "Sweep",
        description=plan.description,
        failures=[f"Point {row['point']} failed: {row['error']}" for row in rows if row.get("error") is not None],
        columns=[*axes, *_COLUMNS.values()],
        rows=_cells(axes, rows),
        sections=sections,
        commands=[shlex.join(["kvtwin", "replay", *point]) for point in plan.arguments],
    )


def _cells(axes: tuple[str, ...], rows: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    """What the table of a sweep shows, with the values to sort by."""
    columns: list[Iterable[tuple[str, Any]]] = []
    for name in axes:
        values = [row.get(name) for row in rows]
        columns.append(zip(short_texts(values), values, strict=True))
    columns += [[(figure_cell(key, row.get(key)), row.get(key)) for row in rows] for key in _COLUMNS]
    return [list(cells) for cells in zip(*columns, strict=True)]
