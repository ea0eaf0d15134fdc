"""Figures of a sweep for the page."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.values import short_texts
from kvtwin.experiments.report_page.run_figures import Figure, styled

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
    from plotly.subplots import make_subplots

    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in others), []).append(row)
    texts = [short_texts([values[index] for values in groups]) for index in range(len(others))]
    labels = [
        ", ".join(f"{name} {each[number]}" for name, each in zip(others, texts, strict=True))
        for number in range(len(groups))
    ]
    ticks = sorted({row[x] for row in rows})
    is_wide = ticks[0] > 0 and ticks[-1] / ticks[0] >= 8
    drawn = make_subplots(
        2, 2, figure=styled(hovermode="closest"), horizontal_spacing=0.1, vertical_spacing=0.16
    ).update_xaxes(title=x, tickvals=ticks, type="log" if is_wide else "linear")
    for index, (key, (title, scale)) in enumerate(METRICS.items()):
        line, column = divmod(index, 2)
        place = {"row": line + 1, "col": column + 1}
        drawn.update_yaxes(title=title, rangemode="tozero", **place)
        for number, members in enumerate(groups.values()):
            points = sorted((row[x], row[key] * scale) for row in members if row.get(key) is not None)
            drawn.add_scatter(
                mode="lines+markers",
                name=labels[number] or x,
                legendgroup=str(number),
                showlegend=index == 0 and bool(others),
                x=[point[0] for point in points],
                y=[point[1] for point in points],
                line_color=_shade(number, len(groups)),
                **place,
            )
    return drawn


def heatmap(rows: Rows, x: str, y: str) -> Figure:
    """Hit rate and preemptions as tables of coloured cells."""
    from plotly.subplots import make_subplots

    xs, ys = (sorted({row[name] for row in rows}) for name in (x, y))
    cell_of = {(row[x], row[y]): row for row in rows}
    metrics = dict(list(METRICS.items())[:2])
    titles = [title for title, _ in metrics.values()]
    drawn = make_subplots(1, 2, figure=styled(hovermode="closest"), subplot_titles=titles, horizontal_spacing=0.1)
    for column, (key, (_, scale)) in enumerate(metrics.items(), 1):
        drawn.add_heatmap(
            x=[str(value) for value in xs],
            y=[str(value) for value in ys],
            z=[[_scaled(cell_of.get((a, b), {}).get(key), scale) for a in xs] for b in ys],
            colorscale="Cividis",
            texttemplate="%{z:,.4~g}",
            showscale=False,
            hovertemplate=f"{x} %{{x}}, {y} %{{y}}: %{{z:,.6~g}}<extra></extra>",
            row=1,
            col=column,
        )
    return drawn.update_xaxes(title=x, type="category").update_yaxes(title=y, type="category")


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def _shade(number: int, count: int) -> str:
    """From blue to yellow: lines of an option that grows stand in order of colour. Seen on dark and light pages."""
    share = number / max(1, count - 1)
    low, high = (52, 110, 190), (213, 160, 20)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))
