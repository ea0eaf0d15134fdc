"""Pictures of what becomes of a whole, a stacked bar per run: prompt tokens by their source, slots by their use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from kvtwin.experiments.misses.token_sources import TOKEN_SOURCES
from kvtwin.experiments.pictures.figure import COLOURS, drawn_in_style, new_figure, without_data

_MEMORY_PARTS = {
    "live": ("holds a token", COLOURS[0]),
    "reserved": ("reserved, filled later", COLOURS[5]),
    "internal": ("held, never filled", COLOURS[1]),
    "external": ("free, but too little", COLOURS[4]),
    "free": ("free, not needed", "#DDDDDD"),
}
"""What a slot of the KV memory is used for (`kvtwin.experiments.runs.memory_use`): words and a colour."""

_LEAST_LABELLED = 6
"""Percent of a bar that have room for their number."""

_DARK = (COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[6], "#888888")
"""Colours on which text is white."""

Summaries = Sequence[Mapping[str, Any]]
Parts = Mapping[str, tuple[str, str]]
"""Keys of a summary, with words and a colour for each."""


@drawn_in_style
def misses(summaries: Summaries, names: Sequence[str], label: str = "") -> Figure:
    """What became of the prompt tokens of each run: hits, and misses by their source. ``label`` says what names are."""
    if len(summaries) == 1:
        return _one_bar(summaries[0], TOKEN_SOURCES, "prompt tokens", "prompts are known by length only")
    return _bars(summaries, names, label, TOKEN_SOURCES, "prompt tokens (%)", "unknown")


@drawn_in_style
def memory(summaries: Summaries, names: Sequence[str], label: str = "") -> Figure | None:
    """What the KV memory of each run was used for while requests waited; None if none did in any run."""
    parts = {f"kv_memory_{part}_mean_while_waiting": drawn for part, drawn in _MEMORY_PARTS.items()}
    if not any(summary.get(key) for summary in summaries for key in parts):
        return None
    return _bars(summaries, names, label, parts, "KV memory, while requests wait (%)", "none waited")


def _one_bar(summary: Mapping[str, Any], parts: Parts, unit: str, if_none: str) -> Figure:
    """One whole: a bar of its parts, each with its share."""
    counts = {key: count for key in parts if (count := summary.get(key))}
    total = sum(counts.values())
    figure, ((axis,),) = new_figure()
    figure.set_size_inches(8, 1.9 + 0.25 * len(counts))
    left = 0.0
    for key, count in counts.items():
        words, colour = parts[key]
        share = 100 * count / total
        axis.barh(0, share, 0.8, left, label=f"{words}: {share:.2f}% ({count:,})", color=colour)
        if share >= _LEAST_LABELLED:
            ink = "white" if colour in _DARK else "black"
            axis.text(left + share / 2, 0, f"{share:.1f}%", ha="center", va="center", fontsize=9, color=ink)
        left += share
    axis.set(xlabel=f"{unit} (%)", xlim=(0, 100), yticks=[])
    axis.grid(False)
    if total:
        figure.legend(loc="outside right center", fontsize=8)
    else:
        without_data(axis, if_none)
    return figure


def _bars(
    summaries: Summaries,
    names: Sequence[str],
    label: str,
    parts: Mapping[str, tuple[str, str]],
    unit: str,
    if_none: str,
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
    for place in np.flatnonzero(totals == 0):
        axis.text(place, 2, if_none, rotation=90, ha="center", va="bottom", fontsize=8, color="#555555")
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(names)), names, fontsize=8, **turned)
    axis.set(xlabel=label, ylabel=unit, xlim=(-0.6, len(names) - 0.4), ylim=(0, 100))
    axis.grid(axis="x", visible=False)
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", fontsize=8)
    return figure
