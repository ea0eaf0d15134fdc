"""Figures of a sweep for the page, as data and layout of the plotting library (plotly.js)."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.report_page.run_figures import Figure, axis, layout

Rows = list[dict[str, Any]]

METRICS = {
    "prefix_cache_hit_rate": ("hit rate (% of tokens)", 100),
    "num_preemptions": ("preemptions", 1),
    "mean_ttft_ms": ("mean time to first token (ms)", 1),
    "output_throughput": ("output tokens per second", 1),
}
"""Keys of the summary that are drawn, with a title and a factor."""


def lines(rows: Rows, x: str, others: tuple[str, ...]) -> Figure:
    """Every metric over the option ``x``, a line per combination of the other options."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in others), []).append(row)
    data, axes = [], {}
    ticks = sorted({row[x] for row in rows})
    is_wide = ticks[0] > 0 and ticks[-1] / ticks[0] >= 8
    for index, (key, (title, scale)) in enumerate(METRICS.items()):
        suffix = str(index + 1) if index else ""
        column, line = index % 2, index // 2
        axes[f"xaxis{suffix}"] = axis(
            x,
            domain=[column * 0.55, column * 0.55 + 0.45],
            anchor=f"y{suffix}",
            tickvals=ticks,
            type="log" if is_wide else "linear",
        )
        axes[f"yaxis{suffix}"] = axis(
            title, domain=[0.58 - line * 0.58, 1 - line * 0.58], anchor=f"x{suffix}", rangemode="tozero"
        )
        for number, (values, members) in enumerate(groups.items()):
            points = sorted((row[x], row[key] * scale) for row in members if row.get(key) is not None)
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": ", ".join(f"{name} {value}" for name, value in zip(others, values, strict=True)) or x,
                    "legendgroup": str(number),
                    "showlegend": index == 0 and bool(others),
                    "x": [point[0] for point in points],
                    "y": [point[1] for point in points],
                    "xaxis": f"x{suffix}",
                    "yaxis": f"y{suffix}",
                    "line": {"color": _shade(number, len(groups))},
                }
            )
    return {"data": data, "layout": layout(hovermode="closest", **axes)}


def heatmap(rows: Rows, x: str, y: str) -> Figure:
    """Hit rate and preemptions as tables of coloured cells."""
    xs, ys = (sorted({row[name] for row in rows}) for name in (x, y))
    cell_of = {(row[x], row[y]): row for row in rows}
    data, axes, notes = [], {}, []
    for index, key in enumerate(list(METRICS)[:2]):
        title, scale = METRICS[key]
        suffix = str(index + 1) if index else ""
        domain = [index * 0.55, index * 0.55 + 0.45]
        values = [[_scaled(cell_of.get((a, b), {}).get(key), scale) for a in xs] for b in ys]
        data.append(
            {
                "type": "heatmap",
                "x": [str(value) for value in xs],
                "y": [str(value) for value in ys],
                "z": values,
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
                "colorscale": "Cividis",
                "texttemplate": "%{z:,.4~g}",
                "showscale": False,
                "hovertemplate": f"{x} %{{x}}, {y} %{{y}}: %{{z:,.6~g}}<extra></extra>",
            }
        )
        axes[f"xaxis{suffix}"] = axis(x, domain=domain, anchor=f"y{suffix}", type="category")
        axes[f"yaxis{suffix}"] = axis(y, anchor=f"x{suffix}", type="category")
        notes.append(
            {
                "text": title,
                "x": domain[0],
                "y": 1.02,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "bottom",
                "showarrow": False,
            }
        )
    return {"data": data, "layout": layout(hovermode="closest", annotations=notes, **axes)}


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _shade(number: int, count: int) -> str:
    """From dark blue to yellow, as in the heat map: lines of an option that grows stand in order of colour."""
    share = number / max(1, count - 1)
    low, high = (0, 34, 78), (213, 172, 40)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))
