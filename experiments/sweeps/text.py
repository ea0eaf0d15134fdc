"""The table of a sweep: a row per point, the varied options first."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.shares import figure_cell, figure_heading
from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.display.values import is_number, short_texts
from kvtwin.experiments.sweeps.spec import SweepSpec

Rows = list[dict[str, Any]]


def text_parts(spec: SweepSpec, rows: Rows) -> list[Part]:
    """The description, a row per point, and why points failed."""
    settings = [short_texts([row.get(name) for row in rows]) for name in spec.axes]
    figures = [[figure_cell(key, row.get(key)) for row in rows] for key in spec.columns]
    words = [index for index, name in enumerate(spec.axes) if not all(is_number(row.get(name)) for row in rows)]
    headings = (*spec.axes, *map(figure_heading, spec.columns))
    points = table(headings, zip(*settings, *figures, strict=True), left=words, num_keys=len(spec.axes))
    failures = [f"* point {row['point']} failed: {row['error']}" for row in rows if "error" in row]
    notes = dict.fromkeys(f"* {note}" for row in rows for note in row.get("trace_notes", ()))
    return [*([spec.description, ""] if spec.description else []), points, *failures, *notes]
