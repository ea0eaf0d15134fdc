"""A row of a CSV file."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from kvtwin.workloads.formats.json_rows import JsonRow

_NUMBER = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?", flags=re.ASCII)


class CsvRow(JsonRow):
    """Cells that are not empty, by column; what looks like a number is one where a number is asked for."""

    __slots__ = ()

    place = "column"

    def required(self, key: str) -> Any:
        """The cell under ``key``, as a number if it can be."""
        text = super().required(key).strip()
        match = _NUMBER.fullmatch(text)
        if match is None:
            return text
        return Decimal(text) if match[1] or "e" in text.lower() else int(text)

    def text(self, key: str) -> str:
        """The cell under ``key``, as it stands there."""
        return str(super().required(key)).strip()
