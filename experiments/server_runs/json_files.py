"""JSON files of records: one object, or one per line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.workloads.formats.json_rows import shown

Row = tuple[str, dict[str, Any]]
"""Where an object stands, and the object."""

_LARGEST = 1e30
"""No time or number of tokens is as large, in any unit."""


def read_object(path: Path) -> dict[str, Any]:
    """The file's JSON object. UserError: it is none."""
    try:
        data = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object, such as vllm bench serve writes")
    return data


def read_objects(path: Path) -> list[Row]:
    """The JSON object of each line that is not empty. UserError: a line holds none."""
    rows = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number}: expected a JSON object")
        rows.append((f"{path}:{number}", row))
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {error}") from None


def whole_number(where: str, value: Any, name: str) -> int:
    """``value``, which stands as ``name`` at ``where``. UserError: it is no whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(f"{where}: {name}: expected a whole number, got {shown(value)}")
    return value


def number(where: str, value: Any, name: str) -> float:
    """``value``, which stands as ``name`` at ``where``. UserError: it is no number, or larger than any can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST < value < _LARGEST:
        raise UserError(f"{where}: {name}: expected a number, got {shown(value)}")
    return value
