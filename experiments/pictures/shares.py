"""Pictures of what becomes of a whole, a stacked bar per run: prompt tokens by their source, slots by their use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvtwin.experiments.misses.token_sources import TOKEN_SOURCES
from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure

_MEMORY_PARTS = {
    "live": ("holds a token", COLOURS[0]),
    "reserved": ("reserved, filled later", COLOURS[5]),
    "internal": ("held, never filled", COLOURS[1]),
    "external": ("free, but too little", COLOURS[4]),
    "free": ("free, not needed", "#DDDDDD"),
}
"""What a slot of the KV memory is used for (`kvtwin.experiments.runs.memory_use`): words and a colour."""

Summaries = Sequence[Mapping[str, Any]]


@drawn_in_style
def misses(summaries: Summaries, names: Sequence[str], label: str = "") -> Figure:
    """What became of the prompt tokens of each run: hits, and misses by their source. ``label`` says what names are."""
    return _bars(summaries, names, label, TOKEN_SOURCES, "prompt tokens (%)")


@drawn_in_style
def memory(summaries: Summaries, names: Sequence[str], label: str = "") -> Figure | None:
    """What the KV memory of each run was used for while requests waited; None if unknown for all runs."""
    parts = {f"kv_memory_{part}_mean_while_waiting": drawn for part, drawn in _MEMORY_PARTS.items()}
    if not any(summary.get(key) for summary in summaries for key in parts):
        return None
    return _bars(summaries, names, label, parts, "KV memory, while requests wait (%)")


def _bars(
    summaries: Summaries, names: Sequence[str], label: str, parts: Mapping[str, tuple[str, str]], unit: str
) -> Figure:
    values = {key: np.array([summary.get(key) or 0 for summary in summaries], dtype=float) for key in parts}
    totals = sum(values.values())
    figure, ((axis,),) = new_figure()
    figure.set_size_inches(4.5 + 0.35 * max(len(names), 4), 4.5)
    bottom = np.zeros(len(names))
    for key, (words, colour) in parts.items():
        if values[key].any():
            shares = 100 * values[key] / np.where(totals > 0, totals, 1)
            axis.bar(range(len(names)), shares, 0.8, bottom, label=words, color=colour)
            bottom += shares
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(names) > 1 else {}
    axis.set_xticks(range(len(names)), names, fontsize=8, **turned)
    axis.set(xlabel=label, ylabel=unit, ylim=(0, 100))
    axis.grid(axis="x", visible=False)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure
