"""Figures of one run for the page, as data and layout of the plotting library (plotly.js)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.display.palette import COLOURS
from kvtwin.experiments.misses.token_sources import TOKEN_SOURCES
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.latencies import SERVED
from kvtwin.sim.recording import NEVER
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

_MOST_POINTS = 1_500
"""Points of a line: more cannot be told apart, and make the page large."""

_RECENT_REQUESTS = 1_000

Figure = dict[str, Any]
Values = NDArray[Any]


def layout(**settings: Any) -> dict[str, Any]:
    """What all figures share."""
    return {
        "colorway": list(COLOURS),
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "x unified",
        "legend": _LEGEND,
        "margin": {"l": 70, "r": 20, "t": 40, "b": 50},
        "template": {"layout": {"xaxis": _AXIS, "yaxis": _AXIS}},
    } | settings


_LEGEND = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
_AXIS = {"gridcolor": "#e5e5e5", "linecolor": "#999", "zeroline": False, "ticks": "outside"}


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """An axis with a title."""
    return _AXIS | {"title": {"text": title}} | settings


def timeline(run: Run) -> Figure:
    """Usage of the cache, requests, and preemptions so far, over simulated time."""
    steps = run.steps
    seconds = steps["end_ns"] / SECOND_NS
    usage = 100 * (1 - steps["free_blocks"] / (run.num_blocks - 1))
    data = [
        *_band(seconds, usage, "cache in use (%)", 0, "y"),
        *_band(seconds, steps["running"], "running", 2, "y2"),
        *_band(seconds, steps["waiting"], "waiting", 1, "y2"),
        *_steps_line(seconds, np.cumsum(steps["preempted"]), "preemptions so far", 3, "y3"),
    ]
    return {
        "data": data,
        "layout": layout(
            xaxis=axis("simulated time (s)", anchor="y3"),
            yaxis=axis("cache in use (%)", domain=[0.7, 1], range=[0, 102]),
            yaxis2=axis("requests", domain=[0.35, 0.65], rangemode="tozero"),
            yaxis3=axis("preemptions", domain=[0, 0.3], rangemode="tozero"),
        ),
    }


def hit_rate(run: Run) -> Figure | None:
    """The share of prompt tokens found in the cache, so far and of late; None where nothing is known or admitted."""
    requests = run.requests
    admitted = requests["first_scheduled_ns"] != NEVER
    if run.summary["prefix_cache_hits"] is None or not admitted.any():
        return None
    order = np.argsort(requests["first_scheduled_ns"][admitted], kind="stable")
    seconds = requests["first_scheduled_ns"][admitted][order] / SECOND_NS
    hits, queries = (np.cumsum(requests[name][admitted][order]) for name in ("hit_tokens", "prompt_tokens"))
    window = min(_RECENT_REQUESTS, max(20, len(hits) // 10))
    recent_hits, recent_queries = (
        sums - np.concatenate((np.zeros(window), sums))[: len(sums)] for sums in (hits, queries)
    )
    data = [
        *_steps_line(seconds, 100 * hits / queries, "since the start", 0, "y"),
        *_steps_line(seconds, 100 * recent_hits / recent_queries, f"of the last {window:,} requests", 1, "y"),
    ]
    return {
        "data": data,
        "layout": layout(xaxis=axis("simulated time (s)"), yaxis=axis("prompt tokens hit (%)", rangemode="tozero")),
    }


def token_sources(summaries: list[dict[str, Any]], names: list[str]) -> Figure | None:
    """A bar per run of what became of its prompt tokens; None where it is unknown of all."""
    totals = [sum(summary.get(key) or 0 for key in TOKEN_SOURCES) for summary in summaries]
    if not any(totals):
        return None
    data = []
    for key, (title, colour) in TOKEN_SOURCES.items():
        counts = [summary.get(key) or 0 for summary in summaries]
        if any(counts):
            shares = [100 * count / max(1, total) for count, total in zip(counts, totals, strict=True)]
            data.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": title,
                    "x": [float(f"{share:.6g}") for share in shares],
                    "y": names,
                    "marker": {"color": colour},
                    "customdata": counts,
                    "hovertemplate": "%{customdata:,} tokens, %{x:.2f} %",
                }
            )
    axes = {"xaxis": axis("prompt tokens (%)", range=[0, 100]), "yaxis": _AXIS | {"type": "category"}}
    axes["yaxis"] |= {"autorange": "reversed", "automargin": True, "ticks": ""}
    legend = _LEGEND | {"traceorder": "normal"}
    return {"data": data, "layout": layout(barmode="stack", hovermode="closest", legend=legend, **axes)}


def latencies(run: Run) -> Figure:
    """How many requests waited at most so long: for the first token, per further token, for the last."""
    requests = run.requests
    served = (requests["first_token_ns"] != NEVER) & np.isin(requests["finish_reason"], SERVED)
    arrival, first, finish = (requests[name][served] for name in ("arrival_ns", "first_token_ns", "finish_ns"))
    outputs = requests["output_tokens"][served]
    several = outputs > 1
    columns = (
        ("time to first token (s)", (first - arrival) / SECOND_NS),
        ("time per output token (ms)", (finish - first)[several] / (outputs[several] - 1) / MILLISECOND_NS),
        ("end to end (s)", (finish - arrival) / SECOND_NS),
    )
    data, axes = [], {}
    for index, (title, values) in enumerate(columns):
        suffix = str(index + 1) if index else ""
        percents = np.linspace(0, 100, min(len(values), 1_000)) if len(values) else np.zeros(0)
        quantiles = np.percentile(values, percents, method="inverted_cdf") if len(values) else percents
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": title,
                "showlegend": False,
                "x": _rounded(quantiles),
                "y": _rounded(percents),
                "xaxis": f"x{suffix}",
                "line": {"color": COLOURS[0]},
                "hovertemplate": "%{y:.1f} % within %{x:,.3f}<extra></extra>",
            }
        )
        axes[f"xaxis{suffix}"] = axis(title, domain=[index * 0.345, index * 0.345 + 0.31], rangemode="tozero")
    return {"data": data, "layout": layout(hovermode="closest", yaxis=axis("requests (%)", range=[0, 101]), **axes)}


def _band(seconds: Values, values: Values, name: str, colour: int, y_axis: str) -> list[dict[str, Any]]:
    """A line; where it has too many points, their mean over the band between the least and the most of each stretch."""
    if len(values) <= _MOST_POINTS:
        return _steps_line(seconds, values, name, colour, y_axis)
    edges = np.linspace(0, len(values), _MOST_POINTS // 2 + 1).astype(int)[:-1]
    means = np.add.reduceat(values, edges) / np.diff([*edges, len(values)])
    outer = {"hoverinfo": "skip", "showlegend": False, "legendgroup": name}
    low = _line(seconds[edges], np.minimum.reduceat(values, edges), name, colour, y_axis) | outer
    high = _line(seconds[edges], np.maximum.reduceat(values, edges), name, colour, y_axis) | outer
    for edge in (low, high):
        edge["line"] = edge["line"] | {"width": 0}
    high |= {"fill": "tonexty", "fillcolor": COLOURS[colour] + "55"}
    return [low, high, _line(seconds[edges], means, name, colour, y_axis) | {"legendgroup": name}]


def _steps_line(seconds: Values, values: Values, name: str, colour: int, y_axis: str) -> list[dict[str, Any]]:
    """A line through as many of the points as can be told apart, the last among them."""
    chosen = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(int)) if len(values) else []
    return [_line(seconds[chosen], values[chosen], name, colour, y_axis)] if len(values) else []


def _line(x: Values, y: Values, name: str, colour: int, y_axis: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": _rounded(x),
        "y": _rounded(y),
        "yaxis": y_axis,
        "line": {"color": COLOURS[colour], "shape": "hv", "width": 1.5},
    }


def _rounded(values: Values) -> list[float]:
    """Numbers as short as they can be without anything to be seen getting lost."""
    return [float(f"{value:.6g}") for value in values.tolist()]
