"""Pictures of several replicas: small multiples, so that they can be told apart."""

from __future__ import annotations

from matplotlib.figure import Figure

from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure
from kvtwin.experiments.pictures.run import band
from kvtwin.experiments.records.reader import Run
from kvtwin.workloads.time_units import SECOND_NS

MOST_SHOWN = 16
"""Replicas that a picture has room for."""


@drawn_in_style
def timelines(run: Run) -> Figure:
    """Per replica the usage of its cache, and its requests, over time; of many, the first ones."""
    shown = run.replicas[:MOST_SHOWN]
    figure, axes = new_figure(len(shown), 2, sharex=True, sharey="col")
    for number, (replica, (cache, requests)) in enumerate(zip(shown, axes, strict=True)):
        steps = replica.steps
        seconds = steps["end_ns"] / SECOND_NS
        band(cache, seconds, 100 * (1 - steps["free_blocks"] / (replica.num_blocks - 1)), COLOURS[0])
        cache.set(ylabel=f"replica {number}", ylim=(0, 102))
        band(requests, seconds, steps["running"], COLOURS[0], "running")
        band(requests, seconds, steps["waiting"], COLOURS[1], "waiting")
        requests.set(ylim=(0, None))
    axes[0][0].set(title="cache in use (%)")
    axes[0][1].set(title="requests")
    axes[0][1].legend(loc="upper right", ncols=2)
    for axis in axes[-1]:
        axis.set(xlabel="simulated time (s)")
    if len(shown) < len(run.replicas):
        figure.supylabel(f"the first {len(shown)} of {len(run.replicas)} replicas", fontsize=9)
    return figure
