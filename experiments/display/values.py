"""Values as text, and what can be drawn of them in which colours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart, the darker ones first."""


def is_number(value: Any) -> bool:
    """Whether a value can be drawn; a switch cannot."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def short_texts(values: Sequence[Any]) -> list[str]:
    """Values of an option that is varied, as people read them: of JSON objects only what differs between them."""
    objects = [_object(value) for value in values]
    if not all(each is not None for each, value in zip(objects, values, strict=True) if value is not None):
        return [cell_text(value) for value in values]
    known = [each for each in objects if each is not None]
    keys = dict.fromkeys(key for each in known for key in each)
    differing = [key for key in keys if len({json.dumps(each.get(key)) for each in known}) > 1] or list(keys)
    return [
        "-" if each is None else ", ".join(f"{key} {cell_text(each[key])}" for key in differing if key in each)
        for each in objects
    ]


def _object(value: Any) -> dict[str, Any] | None:
    """A JSON object, or a text that holds one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


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
