"""The capacity curve as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvtwin.experiments.pictures.figure import COLOURS, Heading, drawn_in_style, new_figure
from kvtwin.workloads.counts import number_of

CURVE = "Hit rate over the size of the cache"

_MARKERS = "osD^v"


def curve_heading(facts: dict[str, Any], command: str = "") -> Heading:
    """What stands on the picture."""
    requests = number_of(facts["num_requests"], "request")
    about = f"{Path(facts['trace']).name}: {requests}, blocks of {facts['block_size']} tokens"
    if "router" in facts:
        about += f"; {facts['data_parallel_size']} replicas, router {facts['router']}"
    return Heading(about, command)


@drawn_in_style
def capacity_curve(facts: dict[str, Any], simulated: dict[str, list[tuple[int, float]]]) -> Figure:
    """Hit rate over the size of the cache: as vLLM evicts, and at best; servers are marked, replays are points.

    ``facts`` are those of `curve_facts` with its line; ``simulated`` has (blocks, hit rate) by name.
    """
    figure, ((axis,),) = new_figure()
    figure.set_size_inches(7.5, 4.4)
    line = facts["line"]
    blocks = [point["blocks"] for point in line]
    axis.plot(blocks, _percents(line, "hit_rate"), color=COLOURS[0], label="LRU, as vLLM evicts")
    if facts["sample"] is None:
        optimal = _percents(line, "optimal_hit_rate")
        axis.plot(blocks, optimal, color=COLOURS[2], linestyle="--", label="clairvoyant: no policy beats it")
    else:
        errors = _percents(line, "hit_rate_standard_error")
        rates = _percents(line, "hit_rate")
        low, high = ([rate + sign * error for rate, error in zip(rates, errors, strict=True)] for sign in (-1, 1))
        axis.fill_between(blocks, low, high, color=COLOURS[0], alpha=0.25, linewidth=0, label="± one standard error")
    ceiling = highest = 100 * facts["ceiling_hit_rate"]
    if "router" in facts:
        label = "one cache as large as all together, LRU"
        axis.plot(blocks, _percents(line, "one_cache_hit_rate"), color=COLOURS[4], linestyle="-.", label=label)
        highest = max(highest, *_percents(line, "one_cache_hit_rate"))
    axis.axhline(ceiling, color="black", linestyle=":", label=f"nothing evicted: {ceiling:.1f} %")
    for index, (name, points) in enumerate(simulated.items()):
        xs, ys = zip(*sorted(points), strict=True)
        axis.plot(
            xs,
            [100 * y for y in ys],
            linestyle="",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=6,
            markeredgecolor="white",
            color=COLOURS[1] if index == 0 else COLOURS[3 + index % 3],
            zorder=3,
            label=f"replayed: {Path(name).name}",
        )
    above = axis.get_xaxis_transform()
    for mark in facts["marks"]:
        if mark["blocks"] is not None:
            axis.axvline(mark["blocks"], color="black", alpha=0.45, linewidth=0.8)
            axis.text(
                mark["blocks"], 1.01, mark["name"], rotation=60, ha="left", va="bottom", fontsize=8, transform=above
            )
    axis.set_xscale("log")
    axis.set(
        xlim=(blocks[0], max(blocks[-1], *(1.2 * (mark["blocks"] or 0) for mark in facts["marks"]), 0)),
        ylim=(0, max(1.0, 1.12 * highest)),
        xlabel=f"{'cache of each replica' if 'router' in facts else 'cache'} (blocks of {facts['block_size']} tokens)",
        ylabel="hit rate (% of prompt tokens)",
    )
    axis.legend(loc="lower right", fontsize=8, frameon=True, framealpha=0.9)
    return figure


def _percents(points: list[dict[str, Any]], key: str) -> list[float]:
    return [100 * point[key] for point in points]
