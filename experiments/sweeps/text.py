"""The table of a sweep: a row per point, the varied options first."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.display.values import cell_text
from kvtwin.experiments.errors import nearest
from kvtwin.experiments.sweeps.spec import SweepSpec

Rows = list[dict[str, Any]]


def unknown_columns(spec: SweepSpec, rows: Rows) -> list[str]:
    """A sentence for each column of the specification that no summary has."""
    known = list(dict.fromkeys(name for row in rows if "error" not in row for name in row))
    sentences = []
    for column in spec.columns:
        if known and column not in known:
            hint = nearest(column, known, 0.5, most=3)
            sentences.append(f"columns: {column}: no key of a replay's summary{hint}")
    return sentences


def text_parts(spec: SweepSpec, rows: Rows) -> list[Part]:
    """The description, a row per point, and why points failed."""
    names = (*spec.axes, *spec.columns)
    points = table(names, [[cell_text(row.get(name)) for name in names] for row in rows], left=())
    failures = [f"* point {row['point']} failed: {row['error']}" for row in rows if "error" in row]
    unknown = [f"* {sentence}" for sentence in unknown_columns(spec, rows)]
    return [*([spec.description, ""] if spec.description else []), points, *failures, *unknown]
