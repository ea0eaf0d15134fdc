"""Values as text, and what can be drawn of them in which colours."""

from __future__ import annotations

from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, the darker ones first."""


def is_number(value: Any) -> bool:
    """Whether a value can be drawn; a switch cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
