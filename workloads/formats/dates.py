"""Dates as traces write them, as ns since 1970."""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal

from kvtwin.workloads.formats.json_rows import LAST_NS, JsonRow, shown
from kvtwin.workloads.time_units import SECOND_NS

_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?", flags=re.ASCII
)
_EPOCH = datetime(1970, 1, 1)


class DateParser:
    """Turns dates into ns since 1970, in integers. Neighbours mostly share the second, parsed once."""

    def __init__(self) -> None:
        self._second_text = ""
        self._second_ns = 0

    def of_any(self, row: JsonRow, key: str) -> int:
        """The date under ``key``, or the number of seconds since 1970."""
        return row.time_ns(key, SECOND_NS) if isinstance(row.required(key), int | Decimal) else self.of(row, key)

    def of(self, row: JsonRow, key: str) -> int:
        """The date under ``key``; without a zone it is UTC."""
        text = row.text(key)
        match = _DATE.fullmatch(text)
        time_ns = None if match is None else self._time_ns(match)
        if time_ns is None or not 0 <= time_ns <= LAST_NS:
            raise row.error(key, f"expected a date and time like 2023-11-16 18:17:03.9799600, got {shown(text)}")
        return time_ns

    def _time_ns(self, match: re.Match[str]) -> int | None:
        second_text, fraction, _utc, sign, zone_hours, zone_minutes = match.groups()
        if second_text != self._second_text:
            try:
                since_epoch = datetime.fromisoformat(second_text) - _EPOCH
            except ValueError:
                return None
            self._second_text = second_text
            self._second_ns = (since_epoch.days * 86_400 + since_epoch.seconds) * SECOND_NS
        time_ns = self._second_ns
        if fraction is not None:
            time_ns += int(fraction) * 10 ** (9 - len(fraction))
        if sign is not None:
            zone_ns = (int(zone_hours) * 60 + int(zone_minutes)) * 60 * SECOND_NS
            time_ns += zone_ns if sign == "-" else -zone_ns
        return time_ns
