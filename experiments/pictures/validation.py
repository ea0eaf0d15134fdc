"""Picture of a prediction beside its measurement: requests, steps, and what the server did over time."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure
from kvtwin.experiments.pictures.replicas import MOST_SHOWN
from kvtwin.experiments.pictures.run import band
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.paired_latencies import Pairs, paired_latencies
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

VALIDATION = "Measured and predicted: requests, steps, and the server over time"

_TIMELINES = {"running": "running requests", "waiting": "waiting requests", "free_blocks": "free blocks"}
_SCATTERED = {"ttft": "time to first token (s)", "e2el": "end to end (s)"}


@drawn_in_style
def validation(measured: Run, predicted: Run, step_times: Pairs) -> Figure:
    """Predicted over measured times of each request, errors of steps over their times, and both runs over time.

    Each replica has a row of its own; of many, the first ones.
    """
    servers = list(zip(measured.replicas, predicted.replicas, strict=True))[:MOST_SHOWN] or [(measured, predicted)]
    figure, axes = new_figure(1 + len(servers), 3)
    figure.set_size_inches(14, 4 * (1 + len(servers)))
    latencies = paired_latencies(measured, predicted)
    for axis, (name, label) in zip(axes[0], _SCATTERED.items(), strict=False):
        _scatter(axis, latencies[name], label)
    _residuals(axes[0][2], step_times)
    for number, (both, row) in enumerate(zip(servers, axes[1:], strict=True)):
        for axis, (column, label) in zip(row, _TIMELINES.items(), strict=True):
            for run, colour, words in zip(both, COLOURS, ("measured", "predicted"), strict=False):
                band(axis, run.steps["end_ns"] / SECOND_NS, run.steps[column], colour, words)
            axis.lines[-1].set_linewidth(0.75)  # so that one can be seen behind the other
            axis.set(ylabel=label, xlabel="virtual time (s)", ylim=(0, None))
        if measured.replicas:
            row[0].set(title=f"replica {number}")
    axes[1][0].legend(loc="upper right")
    return figure


def _scatter(axis: Any, pairs: Pairs, label: str) -> None:
    """A point per request; on the line both times are equal."""
    values = [times / SECOND_NS for times in (pairs.measured, pairs.predicted)]
    both = np.concatenate(values)
    positive = both[both > 0]
    if len(positive):
        limits = positive.min() / 1.2, positive.max() * 1.2
        axis.plot(limits, limits, color=COLOURS[6], linewidth=1, zorder=1)
        axis.set(xlim=limits, ylim=limits, aspect="equal")
        _logarithmic(axis, "x")
        _logarithmic(axis, "y")
    axis.scatter(*values, s=9, alpha=0.5, linewidths=0, zorder=2)
    axis.set(xlabel=f"measured {label}", ylabel=f"predicted {label}")


def _residuals(axis: Any, step_times: Pairs) -> None:
    """A point per step; above the line the model says too much."""
    some = step_times.measured > 0
    milliseconds = step_times.measured[some] / MILLISECOND_NS
    axis.axhline(0, color=COLOURS[6], linewidth=1, zorder=1)
    axis.scatter(milliseconds, 100 * step_times.errors, s=6, alpha=0.4, linewidths=0, zorder=2)
    if some.any():
        _logarithmic(axis, "x")
    axis.set(xlabel="measured time of a step (ms)", ylabel="error of its prediction (%)")


def _logarithmic(axis: Any, direction: str) -> None:
    """A logarithmic axis with a few plain numbers."""
    axis.set(**{f"{direction}scale": "log"})
    one = getattr(axis, f"{direction}axis")
    one.set_major_locator(LogLocator(subs=(1, 2, 5)))
    one.set_major_formatter("{x:g}")
    one.set_minor_formatter(NullFormatter())
