"""Figures of one run for the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.display.values import COLOURS, cell_text
from kvtwin.experiments.misses.token_sources import TOKEN_SOURCES
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.latencies import SERVED
from kvtwin.sim.recording import NEVER
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_POINTS = 1_500
"""Points of a line: more cannot be told apart, and make the page large."""

_RECENT_REQUESTS = 1_000

_PERCENTILES = (50, 90, 99)

Figure: TypeAlias = "go.Figure"
Values = NDArray[Any]


def styled(**layout: Any) -> Figure:
    """A figure without data, in the style that all share."""
    import plotly.graph_objects as go

    shared = {
        "colorway": list(COLOURS),
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "margin": {"l": 70, "r": 20, "t": 40, "b": 50},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
    }
    return go.Figure(layout={"template": {"layout": shared}} | layout)


_AXIS = {"gridcolor": "#e5e5e5", "linecolor": "#999", "showline": True, "zeroline": False, "ticks": "outside"}


def timeline(run: Run) -> Figure:
    """Usage of the cache, requests, and preemptions so far, over simulated time."""
    steps = run.steps
    seconds = steps["end_ns"] / SECOND_NS
    usage = 100 * (1 - steps["free_blocks"] / (run.num_blocks - 1))
    drawn = styled(
        xaxis={"title": "simulated time (s)", "anchor": "y3"},
        yaxis={"title": "cache in use (%)", "domain": [0.7, 1], "range": [0, 102]},
        yaxis2={"title": "requests", "domain": [0.35, 0.65], "rangemode": "tozero"},
        yaxis3={"title": "preemptions", "domain": [0, 0.3], "rangemode": "tozero"},
    )
    _add_band(drawn, seconds, usage, "cache in use (%)", 0, "y")
    _add_band(drawn, seconds, steps["running"], "running", 2, "y2")
    _add_band(drawn, seconds, steps["waiting"], "waiting", 1, "y2")
    _add_steps(drawn, seconds, np.cumsum(steps["preempted"]), "preemptions so far", 3, "y3")
    return drawn


def usage_of_replicas(run: Run) -> Figure:
    """Usage of each replica's cache over simulated time."""
    drawn = styled(xaxis={"title": "simulated time (s)"}, yaxis={"title": "cache in use (%)", "range": [0, 102]})
    for number, replica in enumerate(run.replicas):
        steps = replica.steps
        usage = 100 * (1 - steps["free_blocks"] / (replica.num_blocks - 1))
        _add_band(drawn, steps["end_ns"] / SECOND_NS, usage, f"replica {number}", number % len(COLOURS), "y")
    return drawn


def routed_prefixes(run: Run) -> Figure | None:
    """How many requests with a prefix each replica was sent; None if no prefix was sent twice."""
    rows = run.summary["routed_prefixes"]
    if not rows:
        return None
    labels = [f"{row['first_request_id']}: tokens {row['from_token']:,} to {row['to_token']:,}" for row in rows]
    drawn = styled(hovermode="closest", xaxis={"title": "replica", "type": "category"}, yaxis={"type": "category"})
    drawn.add_heatmap(
        x=[str(number) for number in range(len(run.replicas))],
        y=labels[::-1],
        z=[row["requests"] for row in reversed(rows)],
        colorscale="Cividis",
        texttemplate="%{z:,}",
        showscale=False,
        hovertemplate="replica %{x}, %{y}: %{z:,} requests<extra></extra>",
    )
    return drawn


def hit_rate(run: Run) -> Figure | None:
    """The share of prompt tokens found in the cache, so far and over the last requests; None if unknown."""
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
    drawn = styled(
        xaxis={"title": "simulated time (s)"}, yaxis={"title": "prompt tokens hit (%)", "rangemode": "tozero"}
    )
    _add_steps(drawn, seconds, 100 * hits / queries, "since the start", 0)
    _add_steps(drawn, seconds, 100 * recent_hits / recent_queries, f"of the last {window:,} requests", 1)
    return drawn


def token_sources(summaries: list[dict[str, Any]], names: list[str]) -> Figure | None:
    """A bar per run of what became of its prompt tokens; None if unknown for all runs."""
    totals = [sum(summary.get(key) or 0 for key in TOKEN_SOURCES) for summary in summaries]
    if not any(totals):
        return None
    drawn = styled(
        barmode="stack",
        hovermode="closest",
        legend={"traceorder": "normal"},
        xaxis={"title": "prompt tokens (%)", "range": [0, 100]},
        yaxis={"type": "category", "autorange": "reversed", "automargin": True, "ticks": ""},
    )
    for key, (title, colour) in TOKEN_SOURCES.items():
        counts = [summary.get(key) or 0 for summary in summaries]
        if any(counts):
            shares = [100 * count / max(1, total) for count, total in zip(counts, totals, strict=True)]
            drawn.add_bar(
                orientation="h",
                name=title,
                x=rounded(shares),
                y=names,
                marker_color=colour,
                customdata=counts,
                hovertemplate="%{customdata:,} tokens, %{x:.2f} %",
            )
    return drawn


def latencies(run: Run) -> dict[str, Figure]:
    """How many requests waited at most so long: for the first token, per further token, for the last; by name."""
    requests = run.requests
    served = (requests["first_token_ns"] != NEVER) & np.isin(requests["finish_reason"], SERVED)
    arrival, first, finish = (requests[name][served] for name in ("arrival_ns", "first_token_ns", "finish_ns"))
    outputs = requests["output_tokens"][served]
    several = outputs > 1
    per_token = (finish - first)[several] / (outputs[several] - 1)
    return {
        "ttft": _distribution("time to first token (s)", (first - arrival) / SECOND_NS),
        "tpot": _distribution("time per output token (ms)", per_token / MILLISECOND_NS),
        "e2el": _distribution("end to end (s)", (finish - arrival) / SECOND_NS),
    }


def _distribution(title: str, values: Values) -> Figure:
    """The share of requests over their time, with percentiles marked."""
    drawn = styled(
        hovermode="closest",
        xaxis={"title": title, "rangemode": "tozero"},
        yaxis={"title": "requests (%)", "range": [0, 104]},
    )
    if not len(values):
        return drawn.add_annotation(text="no such request", showarrow=False, xref="paper", yref="paper", x=0.5, y=0.5)
    percents = np.linspace(0, 100, min(len(values), 1_000))
    drawn.add_scatter(
        mode="lines",
        name=title,
        showlegend=False,
        x=rounded(np.percentile(values, percents, method="inverted_cdf")),
        y=rounded(percents),
        line_color=COLOURS[0],
        hovertemplate="%{y:.1f} % within %{x:,.3f}<extra></extra>",
    )
    marks = np.percentile(values, _PERCENTILES, method="inverted_cdf")
    drawn.add_scatter(
        mode="markers+text",
        name="percentiles",
        showlegend=False,
        x=rounded(marks),
        y=list(_PERCENTILES),
        text=[
            f"p{percent} {cell_text(value, 3)} " for percent, value in zip(_PERCENTILES, marks.tolist(), strict=True)
        ],
        textposition="middle left",
        cliponaxis=False,
        marker={"color": COLOURS[1], "size": 8, "symbol": "diamond"},
        hovertemplate="p%{y} %{x:,.4g}<extra></extra>",
    )
    return drawn


def _add_band(figure: Figure, seconds: Values, values: Values, name: str, colour: int, y_axis: str) -> None:
    """A line; where it has too many points, their mean over the band between the least and the most of each stretch."""
    if len(values) <= _MOST_POINTS:
        _add_steps(figure, seconds, values, name, colour, y_axis)
        return
    edges = np.linspace(0, len(values), _MOST_POINTS // 2 + 1).astype(int)[:-1]
    means = np.add.reduceat(values, edges) / np.diff([*edges, len(values)])
    outer: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False, "legendgroup": name, "line_width": 0}
    filled: dict[str, Any] = {"fill": "tonexty", "fillcolor": COLOURS[colour] + "55"}
    _add_line(figure, seconds[edges], np.minimum.reduceat(values, edges), name, colour, y_axis, **outer)
    _add_line(figure, seconds[edges], np.maximum.reduceat(values, edges), name, colour, y_axis, **outer, **filled)
    _add_line(figure, seconds[edges], means, name, colour, y_axis, legendgroup=name)


def _add_steps(figure: Figure, seconds: Values, values: Values, name: str, colour: int, y_axis: str = "y") -> None:
    """A line through as many of the points as can be told apart, the last among them."""
    if len(values):
        chosen = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(int))
        _add_line(figure, seconds[chosen], values[chosen], name, colour, y_axis)


def _add_line(
    figure: Figure, x: Values, y: Values, name: str, colour: int, y_axis: str, *, line_width: float = 1.5, **more: Any
) -> None:
    line = {"color": COLOURS[colour], "shape": "hv", "width": line_width}
    figure.add_scatter(mode="lines", name=name, x=rounded(x), y=rounded(y), yaxis=y_axis, line=line, **more)


def rounded(values: Iterable[float]) -> list[float]:
    """Numbers as short as they can be without anything to be seen getting lost."""
    return [float(f"{value:.6g}") for value in values]
