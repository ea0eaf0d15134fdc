"""The CSV files of the Azure LLM inference traces of 2023 and 2024: lengths and wall-clock times only.

``TIMESTAMP,ContextTokens,GeneratedTokens`` with rows like ``2023-11-16 18:17:03.9799600,4808,10``; 2024 has
a zone, ``+00:00``, behind the time. Source: https://github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.json_rows import LAST_NS, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.text_lines import text_lines
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):(\d\d))?", flags=re.ASCII
)
_EPOCH = datetime(1970, 1, 1)
_MOST_DIGITS = 18


@dataclass(frozen=True)
class AzureReader(Reader):
    """Reads the Azure traces of 2023 and 2024. Arrivals are ns since 1970; a time without zone is UTC."""

    name: ClassVar[str] = "azure"
    wall_clock: ClassVar[bool] = True

    @property
    def first_line_names(self) -> frozenset[str]:
        return frozenset(_COLUMNS)

    def read(self, path: Path) -> Iterator[RequestRecord]:
        lines = text_lines(path)
        number, header = next(lines, (0, ""))
        if not header:
            return
        columns = [column.strip() for column in header.split(",")]
        if "NumImages" in columns:
            raise WorkloadError(f"{path}:{number}", "NumImages: the Azure LMM trace of 2025 is not supported yet")
        for name in _COLUMNS:
            if name not in columns:
                raise WorkloadError(f"{path}:{number}", f"{name}: expected this column, but it is missing")
        time_column, context_column, generated_column = (columns.index(name) for name in _COLUMNS)
        read_time = _TimestampParser()
        for index, (number, line) in enumerate(lines):
            source = f"{path}:{number}"
            fields = line.split(",")
            if len(fields) != len(columns):
                raise WorkloadError(source, f"expected {len(columns)} columns, got {len(fields)}")
            yield RequestRecord(
                request_id=str(index),
                arrival_ns=read_time(fields[time_column], source),
                prompt_tokens=_count(fields[context_column], 1, source, "ContextTokens"),
                output_tokens=_count(fields[generated_column], 0, source, "GeneratedTokens"),
                source=source,
            )


def _count(text: str, minimum: int, source: str, column: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS) or int(text) < minimum:
        raise WorkloadError(source, f"{column}: expected an integer of at least {minimum}, got {shown(text)}")
    return int(text)


class _TimestampParser:
    """Turns timestamps into ns since 1970, in integers. Neighbours mostly share the second, parsed once."""

    def __init__(self) -> None:
        self._second_text = ""
        self._second_ns = 0

    def __call__(self, text: str, source: str) -> int:
        match = _TIMESTAMP.fullmatch(text)
        if match is None:
            raise self._error(text, source)
        second_text, fraction, _utc, sign, zone_hours, zone_minutes = match.groups()
        if second_text != self._second_text:
            try:
                since_epoch = datetime.fromisoformat(second_text) - _EPOCH
            except ValueError:
                raise self._error(text, source) from None
            self._second_text = second_text
            self._second_ns = (since_epoch.days * 86_400 + since_epoch.seconds) * SECOND_NS
        time_ns = self._second_ns
        if fraction is not None:
            time_ns += int(fraction) * 10 ** (9 - len(fraction))
        if sign is not None:
            zone_ns = (int(zone_hours) * 60 + int(zone_minutes)) * 60 * SECOND_NS
            time_ns += zone_ns if sign == "-" else -zone_ns
        if not 0 <= time_ns <= LAST_NS:
            raise self._error(text, source)
        return time_ns

    def _error(self, text: str, source: str) -> WorkloadError:
        return WorkloadError(
            source, f"TIMESTAMP: expected a date and time like 2023-11-16 18:17:03.9799600, got {shown(text)}"
        )
