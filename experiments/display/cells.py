"""Values of a summary as cells of a table."""

from __future__ import annotations

from typing import Any


def cell_text(value: Any, digits: int = 4) -> str:
    """A value as people read it: whole numbers whole, others with so many significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{digits}g}" if abs(value) < 10**digits else f"{value:,.0f}"
    return str(value)


def is_number(value: Any) -> bool:
    """Whether a value can be drawn; a switch cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool)
