"""What all pictures share: size, colours that colour-blind readers can tell apart, and files that come out the same."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from kvtwin.experiments.display.values import COLOURS
from kvtwin.experiments.files.whole import whole_file

KINDS: dict[str, dict[str, str | None]] = {"png": {"Software": None}, "svg": {"Date": None}}
"""Kinds of files, with what must be left out of each for it to come out the same."""

_CHARACTERS_PER_INCH = 18
"""Of the smallest text."""

LINES = ("-", "--", "-.", ":")
"""Styles, so that lines can be told apart without their colours, and one behind another is seen."""

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


@dataclass(frozen=True)
class Heading:
    """What stands on every picture of a result."""

    about: str
    """Trace, model, and what else tells it from others."""
    command: str = ""
    """What leads to the result."""

    @drawn_in_style
    def on(self, figure: Figure, what: str) -> Figure:
        """``figure``, which shows ``what``."""
        width = round(figure.get_size_inches()[0] * _CHARACTERS_PER_INCH)
        above = "\n".join(line for text in (what, self.about) for line in wrap(text, round(0.6 * width)))
        figure.suptitle(above, fontsize=11)
        if self.command:
            figure.supxlabel("\n".join(wrap(self.command, width)), x=0.01, ha="left", fontsize=7, color="#555555")
        figure.set_label(self.command)
        return figure


def new_figure(num_rows: int = 1, num_columns: int = 1, **settings: Any) -> tuple[Figure, Any]:
    """A figure with a grid of axes."""
    figure = Figure(figsize=(4.6 * num_columns + 1.4, 2.4 * num_rows + 1.4), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, squeeze=False, **settings)


def without_data(axis: Any, why: str) -> None:
    """A word where there is nothing to draw."""
    axis.text(0.5, 0.5, why, transform=axis.transAxes, ha="center", va="center", fontsize=9, color="#555555")


def from_zero(axis: Any) -> None:
    """The vertical axis begins at 0, and has whole numbers where nothing is above it."""
    top = axis.get_ylim()[1]
    axis.set_ylim(0, 1.05 * top if axis.dataLim.ymax > 0 else 1)


def paths_of(folder: Path, names: Iterable[str]) -> list[Path]:
    """Where the pictures of these names are: each as ``name.png`` and ``name.svg``."""
    return [folder / f"{name}.{kind}" for name in names for kind in KINDS]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write both files of a picture; return their paths."""
    paths = paths_of(folder, (name,))
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
    command = str(figure.get_label())
    figure.savefig(content, format=kind, metadata=KINDS[kind] | ({"Description": command} if command else {}))
    return content.getvalue()
