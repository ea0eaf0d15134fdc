"""Pictures of several replicas: small multiples, so that they can be told apart."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure, without_data
from kvtwin.experiments.pictures.run import band
from kvtwin.experiments.records.reader import Run
from kvtwin.workloads.counts import number_of
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
        figure.supylabel(f"the first {len(shown)} of {number_of(len(run.replicas), 'replica')}", fontsize=9)
    return figure


@drawn_in_style
def routed_prefixes(run: Run) -> Figure:
    """A row per prefix that requests share, a column per replica: how many requests with it the replica was sent."""
    rows = run.summary["routed_prefixes"]
    num_shown = min(MOST_SHOWN, len(run.replicas))
    figure, ((axis,),) = new_figure()
    figure.set_size_inches(max(6.0, 3.5 + 0.7 * num_shown), 1.8 + 0.32 * max(1, len(rows)))
    if not rows:
        without_data(axis, "no prefix was sent twice")
        return figure
    counts = np.array([row["requests"][:num_shown] for row in rows], dtype=float)
    shares = 100 * counts / np.array([sum(row["requests"]) for row in rows])[:, None]
    axis.imshow(shares, cmap="cividis", aspect="auto", vmin=0, vmax=100)
    for (row, column), count in np.ndenumerate(counts):
        colour = "white" if shares[row, column] < 50 else "black"
        axis.text(column, row, f"{count:,.0f}", ha="center", va="center", fontsize=8, color=colour)
    axis.set_xticks(range(num_shown), [str(number) for number in range(num_shown)])
    labels = [f"{row['first_request_id']}: tokens {row['from_token']:,} to {row['to_token']:,}" for row in rows]
    axis.set_yticks(range(len(rows)), labels, fontsize=8)
    axis.set(xlabel="replica", ylabel="first request with the prefix")
    axis.grid(False)
    return figure
