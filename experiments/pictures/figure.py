"""What all pictures share: size, colours that colour-blind readers can tell apart, and files that come out the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, the darker ones first."""

mpl.rcParams.update(
    {
        "axes.grid": True,
        "axes.prop_cycle": mpl.cycler(color=COLOURS),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 10,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "lines.linewidth": 1.5,
        "savefig.dpi": 150,
        "svg.hashsalt": "kvtwin",  # else every file differs
    }
)


def new_figure(num_rows: int = 1, num_columns: int = 1, **settings: Any) -> tuple[Figure, Any]:
    """A figure with a grid of axes."""
    figure = Figure(figsize=(4.6 * num_columns + 1.4, 2.4 * num_rows + 0.8), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, **settings)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg``, each under a temporary name first; return their paths."""
    paths = []
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        path = folder / f"{name}.{kind}"
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
        try:
            figure.savefig(partial, format=kind, metadata=metadata)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        paths.append(path)
    return paths
