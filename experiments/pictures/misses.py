"""Pictures of where prompt tokens come from: hits, and misses by their source."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.pictures.figure import new_figure
from experiments.token_sources import PARTS


def misses(summaries: list[dict[str, Any]], names: list[str], label: str = "") -> Figure:
    """A bar per run, named below it, of what became of its prompt tokens; ``label`` says what the names are."""
    counts = {key: np.array([summary.get(key) or 0 for summary in summaries], dtype=float) for key in PARTS}
    totals = np.maximum(sum(counts.values()), 1)
    figure, ((axis,),) = new_figure()
    figure.set_size_inches(4.5 + 0.35 * max(len(names), 4), 4.5)
    bottom = np.zeros(len(names))
    for key, (label, colour) in PARTS.items():
        if counts[key].any():
            shares = 100 * counts[key] / totals
            axis.bar(range(len(names)), shares, 0.8, bottom, label=label, color=colour)
            bottom += shares
    turned = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if len(names) > 1 else {}
    axis.set_xticks(range(len(names)), names, fontsize=8, **turned)
    axis.set(xlabel=label, ylabel="prompt tokens (%)", ylim=(0, 100))
    axis.grid(axis="x", visible=False)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
    return figure
