"""Pictures of a sweep: how figures of the runs change with the options."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvtwin.experiments.display.values import short_texts
from kvtwin.experiments.pictures.figure import LINES, drawn_in_style, from_zero, new_figure, without_data

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Metric:
    """A figure of the summary, as it is drawn."""

    key: str
    label: str
    scale: float = 1.0


METRICS = (
    Metric("prefix_cache_hit_rate", "hit rate (% of tokens)", 100),
    Metric("num_preemptions", "preemptions"),
)


@drawn_in_style
def lines(rows: Rows, x: str, others: tuple[str, ...], metrics: tuple[Metric, ...]) -> Figure:
    """Every metric over the option ``x``, a line per combination of the other options."""
    figure, axes = new_figure(1, len(metrics))
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in others), []).append(row)
    texts = [short_texts([values[index] for values in groups]) for index in range(len(others))]
    labels = {
        values: ", ".join(f"{name} {each[index]}" for name, each in zip(others, texts, strict=True))
        for index, values in enumerate(groups)
    }
    for axis, metric in zip(axes[0], metrics, strict=True):
        for (values, members), line in zip(groups.items(), cycle(LINES), strict=False):
            points = sorted((row[x], row[metric.key]) for row in members if row.get(metric.key) is not None)
            label = labels[values]
            if points:
                axis.plot(*zip(*points, strict=True), marker="o", markersize=4, linestyle=line, label=label)
        if not axis.lines:
            without_data(axis, "not known for these replays")
        _spread(axis, [row[x] for row in rows])
        axis.set(xlabel=x, ylabel=metric.label)
        from_zero(axis)
        axis.yaxis.set_major_formatter(lambda value, _, scale=metric.scale: f"{value * scale:g}")
    if others:
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


@drawn_in_style
def heatmap(rows: Rows, x: str, y: str, metrics: tuple[Metric, ...]) -> Figure:
    """Every metric as a table of coloured cells."""
    figure, axes = new_figure(1, len(metrics))
    xs, ys = (sorted({row[name] for row in rows}) for name in (x, y))
    for axis, metric in zip(axes[0], metrics, strict=True):
        cells = np.full((len(ys), len(xs)), np.nan)
        for row in rows:
            if row.get(metric.key) is not None:
                cells[ys.index(row[y]), xs.index(row[x])] = row[metric.key] * metric.scale
        image = axis.imshow(cells, cmap="cividis", aspect="auto", origin="lower")
        middle = np.nanmean(image.get_clim()) if np.isfinite(cells).any() else 0
        for (row_index, column), value in np.ndenumerate(cells):
            text = "-" if np.isnan(value) else f"{value:,.4g}"
            colour = "white" if value < middle else "black"
            axis.text(column, row_index, text, ha="center", va="center", fontsize=8, color=colour)
        axis.set_xticks(range(len(xs)), xs)
        axis.set_yticks(range(len(ys)), ys)
        axis.set(xlabel=x, ylabel=y, title=metric.label)
        axis.grid(False)
    return figure


def _spread(axis: Any, values: list[float]) -> None:
    """A logarithmic axis for values that double, with each value as a tick."""
    ticks = sorted(set(values))
    if len(ticks) > 2 and min(ticks) > 0 and max(ticks) / min(ticks) >= 8:
        axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
