"""Pictures of one run: what the server did over time, and what its clients waited for."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvtwin.experiments.display.values import cell_text
from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure, without_data
from kvtwin.experiments.records.reader import Run
from kvtwin.workloads.time_units import SECOND_NS

_PERCENTILES = (50, 90, 99)

_MOST_POINTS = 2_000
"""Points of a line: more cannot be told apart, and make files large."""


@drawn_in_style
def timeline(run: Run) -> Figure:
    """Usage of the cache, requests running and waiting, and preemptions, over time."""
    steps = run.steps
    seconds = steps["end_ns"] / SECOND_NS
    usage = 100 * (1 - steps["free_blocks"] / (run.num_blocks - 1))
    figure, axes = new_figure(3, 1, sharex=True)
    cache, requests, preemptions = axes[:, 0]
    band(cache, seconds, usage, COLOURS[0])
    cache.set(ylabel="cache in use (%)", ylim=(0, 102))
    band(requests, seconds, steps["running"], COLOURS[0], "running")
    band(requests, seconds, steps["waiting"], COLOURS[1], "waiting")
    requests.set(ylabel="requests", ylim=(0, None))
    requests.legend(loc="upper right", ncols=2)
    preemptions.step(seconds, np.cumsum(steps["preempted"]), where="post", color=COLOURS[1])
    preemptions.set(ylabel="preemptions so far", xlabel="simulated time (s)", ylim=(0, None))
    return figure


@drawn_in_style
def latencies(run: Run) -> Figure:
    """Cumulative distributions of TTFT, TPOT and end-to-end latency."""
    requests = run.requests
    served = (requests["first_token_ns"] >= 0) & np.isin(requests["finish_reason"], ("stop", "length"))
    arrival, first, finish = (requests[name][served] for name in ("arrival_ns", "first_token_ns", "finish_ns"))
    outputs = requests["output_tokens"][served]
    several = outputs > 1
    figure, axes = new_figure(1, 3)
    for axis, values, label in zip(
        axes[0],
        (
            (first - arrival) / SECOND_NS,
            (finish - first)[several] / (outputs[several] - 1) / 1e6,
            (finish - arrival) / SECOND_NS,
        ),
        ("time to first token (s)", "time per output token (ms)", "end to end (s)"),
        strict=True,
    ):
        values = np.sort(values)
        axis.set(xlabel=label, ylim=(0, 101))
        if not len(values):
            without_data(axis, "no request was served" if not served.any() else "no request had two tokens")
            continue
        axis.step(values, np.arange(1, len(values) + 1) / len(values) * 100, where="post")
        axis.set(xlim=(0, None))
        for percent in _PERCENTILES:
            value = float(np.percentile(values, percent))
            axis.plot(value, percent, "o", color=COLOURS[1], markersize=4)
            at: dict[str, Any] = {"xytext": (-4, 3), "textcoords": "offset points", "ha": "right", "fontsize": 8}
            axis.annotate(f"p{percent} {cell_text(float(value), 3)}", (value, percent), **at)
    axes[0][0].set(ylabel="requests (%)")
    return figure


def band(axis: Any, seconds: np.ndarray, values: np.ndarray, colour: str, label: str | None = None) -> None:
    """A line; where it has too many points, the band between least and most of each stretch."""
    if len(values) <= _MOST_POINTS:
        axis.step(seconds, values, where="post", color=colour, label=label)
        return
    edges = np.linspace(0, len(values), _MOST_POINTS // 2 + 1).astype(int)[:-1]
    low, high = np.minimum.reduceat(values, edges), np.maximum.reduceat(values, edges)
    axis.fill_between(seconds[edges], low, high, step="post", color=colour, alpha=0.35, linewidth=0)
    axis.step(
        seconds[edges], np.add.reduceat(values, edges) / np.diff([*edges, len(values)]), color=colour, label=label
    )
