"""Pictures of the limits that ``kvtwin limit`` found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from kvtwin.experiments.display.shares import figure_heading, is_share
from kvtwin.experiments.pictures.figure import COLOURS, LINES, drawn_in_style, from_zero, new_figure, without_data
from kvtwin.workloads.counts import number_of

Facts = dict[str, Any]


@drawn_in_style
def limits(facts: Facts) -> Figure:
    """A row per server and criterion: up to which rate it held, and from which it failed."""
    found = list(_found(facts))
    figure, ((axis,),) = new_figure()
    figure.set_size_inches(8, 1.6 + 0.32 * max(len(found), 2))
    low, high = facts["lowest_rate"], facts["highest_rate"]
    for place, (_, _, limit) in enumerate(found):
        held, failed = limit["highest_held"], limit["lowest_failed"]
        axis.barh(place, (held or low) - low, 0.6, low, color=COLOURS[0], label="holds")
        if failed is not None:
            axis.barh(place, high - failed, 0.6, failed, color=COLOURS[1], alpha=0.35, hatch="///", label="fails")
        if held is None:
            axis.text(low, place, " not even here, the lowest tried", va="center", fontsize=9)
        else:
            text = f"{held:.4g}{', the highest tried' if failed is None else ''}  "
            axis.text(held, place, text, ha="right", va="center", fontsize=9, color="white")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set(xlim=(low, high), xlabel=f"--{facts['rate_option']}")
    axis.set_yticks(range(len(found)), [f"{memory}: {name}" for memory, name, _ in found])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside upper right", ncols=2, fontsize=8)
    return figure


@drawn_in_style
def over_rate(facts: Facts) -> Figure:
    """Every figure that a criterion bounds, over the rates that were replayed, a line per server."""
    bounds = {limit["figure"]: limit for _, _, limit in _found(facts) if "figure" in limit}
    figure, axes = new_figure(1, max(1, len(bounds)))
    if not bounds:
        without_data(axes[0][0], "no server could be replayed")
    for axis, (key, limit) in zip(axes[0], bounds.items(), strict=False):
        scale = 100 if is_share(key) else 1
        servers = [server for server in facts["servers"] if "error" not in server]
        for server, colour, line in zip(servers, cycle(COLOURS), cycle(LINES), strict=False):
            points = sorted((each["rate"], each[key] * scale) for each in server["replays"] if each[key] is not None)
            axis.plot(
                *zip(*points, strict=True),
                marker="o",
                markersize=4,
                linestyle=line,
                label=_memory(server),
                color=colour,
            )
        if limit["below"] is None:
            axis.axhline(limit["bound"] * scale, color="black", linestyle=":", label="at most")
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set(xlabel=f"--{facts['rate_option']}", ylabel=figure_heading(key))
        from_zero(axis)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8)
    return figure


def _found(facts: Facts) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Memory, criterion and limit."""
    for server in facts["servers"]:
        for limit in server.get("limits", ()):
            yield _memory(server), limit["criterion"], limit


def _memory(server: dict[str, Any]) -> str:
    fraction = server["memory_fraction"]
    return number_of(server["num_gpu_blocks"], "block") if fraction is None else f"memory {fraction:g}"
