"""The table of a sweep: a row per point, the varied options first."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.display.values import cell_text
from kvtwin.experiments.sweeps.spec import SweepSpec

Rows = list[dict[str, Any]]


def text_parts(spec: SweepSpec, rows: Rows) -> list[Part]:
    """The description, a row per point, and why points failed."""
    names = (*spec.axes, *spec.columns)
    points = table(names, [[cell_text(row.get(name)) for name in names] for row in rows], left=())
    failures = [f"* point {row['point']} failed: {row['error']}" for row in rows if "error" in row]
    notes = dict.fromkeys(f"* {note}" for row in rows for note in row.get("trace_notes", ()))
    return [*([spec.description, ""] if spec.description else []), points, *failures, *notes]
