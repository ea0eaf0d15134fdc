"""What all pictures share: size, colours that colour-blind readers can tell apart, and files that come out the same."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kvtwin.experiments.display.values import COLOURS
from kvtwin.experiments.files.whole import whole_file

KINDS: dict[str, dict[str, None]] = {"png": {"Software": None}, "svg": {"Date": None}}
"""Kinds of files, with what must be left out of each for it to come out the same."""

drawn_in_style = mpl.rc_context(
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
"""Decorates what draws or saves: the settings hold only meanwhile, and a caller keeps those of its own pictures."""


def new_figure(num_rows: int = 1, num_columns: int = 1, **settings: Any) -> tuple[Figure, Any]:
    """A figure with a grid of axes."""
    figure = Figure(figsize=(4.6 * num_columns + 1.4, 2.4 * num_rows + 0.8), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, **settings)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg``; return their paths."""
    paths = [folder / f"{name}.{kind}" for kind in KINDS]
    for path in paths:
        save_as(figure, path)
    return paths


def save_as(figure: Figure, path: Path) -> None:
    """Write one file of a kind in `KINDS`, under a temporary name first."""
    with whole_file(path) as partial:
        partial.write_bytes(picture(figure, path.suffix[1:].lower()))


@drawn_in_style
def picture(figure: Figure, kind: str) -> bytes:
    """The content of a file of a ``kind`` in `KINDS`."""
    content = io.BytesIO()
    figure.savefig(content, format=kind, metadata=KINDS[kind])
    return content.getvalue()
