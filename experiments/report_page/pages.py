"""The page about a run, and the page about a sweep."""

from __future__ import annotations

import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from kvtwin.experiments.display.cells import cell_text, is_number
from kvtwin.experiments.options.reading import command_line
from kvtwin.experiments.records.event_file import has_events
from kvtwin.experiments.records.options import options_of_run
from kvtwin.experiments.records.reader import Run, written_by_this_version
from kvtwin.experiments.report_page import run_figures, sweep_figures
from kvtwin.experiments.report_page.block_map import block_map
from kvtwin.experiments.report_page.page import Page
from kvtwin.experiments.report_page.words import sentences, tiles
from kvtwin.experiments.runs.text import bench_lines, cache_lines
from kvtwin.experiments.sweeps.folder import read_sweep, read_sweep_points


def page_of(folder: Path) -> Page:
    """The page about what ``folder`` holds. UserError: neither a run nor a sweep, or of another version."""
    with written_by_this_version(folder):
        return _of_sweep(folder) if (folder / "sweep.yaml").is_file() else _of_run(Run(folder))


def _of_run(run: Run) -> Page:
    summary, configuration = run.summary, run.configuration
    page = Page(run.title)
    page.tiles(tiles(summary))
    page.items(summary["verdicts"], "verdicts")
    page.items(sentences(summary), "sentences")
    page.heading("Timeline")
    page.figure("timeline", run_figures.timeline(run), 620)
    if figure := run_figures.hit_rate(run):
        page.heading("Hit rate")
        page.figure("hit-rate", figure)
    if figure := run_figures.token_sources([summary], [""]):
        page.heading("Where prompt tokens come from")
        page.figure("token-sources", figure, 190)
    page.heading("Latencies")
    page.figure("latencies", run_figures.latencies(run))
    page.heading("Block map")
    if has_events(run.path):
        page.block_map(block_map(run))
    else:
        page.paragraph("Not recorded: replay with --events to see what becomes of the blocks.")
    page.heading("All figures")
    options = options_of_run(configuration)
    page.preformatted("\n".join([*bench_lines(summary, options), *cache_lines(summary)]))
    page.heading("How to reproduce")
    page.preformatted(f"{command_line(configuration['command'], options)} --out RUN")
    page.paragraph(f"kvtwin {configuration['kvtwin_version']}, which models vLLM {configuration['vllm_version']}.")
    page.preformatted(yaml.safe_dump(configuration, sort_keys=False), "configuration")
    return page


_COLUMNS = {
    "prefix_cache_hit_rate": "hit rate",
    "num_preemptions": "preemptions",
    "num_evictions": "evicted blocks",
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "mean_ttft_ms": "mean TTFT (ms)",
    "mean_tpot_ms": "mean TPOT (ms)",
}
"""Keys of the summary that the table of a sweep shows."""


def _of_sweep(folder: Path) -> Page:
    axes, rows = read_sweep(folder)
    description, points = read_sweep_points(folder)
    page = Page(f"Sweep over {', '.join(axes)}" if axes else "Sweep")
    if description:
        page.paragraph(description)
    failed = [row for row in rows if row.get("error") is not None]
    page.items([f"Point {row['point']} failed: {row['error']}" for row in failed], "verdicts")
    done = [row for row in rows if row.get("error") is None]
    page.heading("Points")
    names = [*axes, *_COLUMNS]
    cells = [[(_text(row.get(name)), row.get(name)) for name in names] for row in rows]
    page.table([*axes, *_COLUMNS.values()], cells)
    varied = [name for name in axes if len({str(row.get(name)) for row in done}) > 1]
    numbers = [name for name in varied if all(is_number(row.get(name)) for row in done)]
    for name in numbers:
        page.heading(f"Over {name}")
        others = tuple(other for other in varied if other != name)
        page.figure(f"over-{name}", sweep_figures.lines(done, name, others), 640)
    if len(varied) == 2:
        for x, y in combinations(numbers, 2):
            page.heading(f"{x} by {y}")
            page.figure(f"{x}-by-{y}", sweep_figures.heatmap(done, x, y), 380)
    labels = [", ".join(f"{name} {row.get(name)}" for name in axes) for row in done]
    if figure := run_figures.token_sources(done, labels):
        page.heading("Where prompt tokens come from")
        page.figure("token-sources", figure, 150 + 26 * len(done))
    page.heading("How to reproduce")
    page.preformatted("\n".join(shlex.join(["kvtwin", "replay", *point]) for point in points), "one replay per point")
    return page


def _text(value: Any) -> str:
    return str(value) if isinstance(value, bool) else cell_text(value)
