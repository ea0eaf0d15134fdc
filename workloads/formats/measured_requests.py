"""Rows of requests that a real server answered, with their times, as LLMServingSim's measurements have them.

``{"request_id": "bench-0", "input_toks": 2358, "output_toks": 531, "arrival_time": 1787267980.08, "queued_ts":
27536.66, "scheduled_ts": 27536.66, "first_token_ts": 27537.35}``: arrivals are seconds since 1970.
Source: https://github.com/casys-kaist/LLMServingSim, ``bench/examples``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS


@dataclass(frozen=True)
class MeasuredRequestsReader(Reader):
    """Reads lengths and arrivals."""

    name: ClassVar[str] = "measured-requests"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("input_toks", "output_toks", "arrival_time"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        for index, row in enumerate(rows):
            with rows.bad_lines:
                yield RequestRecord(
                    request_id=row.text("request_id") if "request_id" in row.values else str(index),
                    arrival_ns=row.time_ns("arrival_time", SECOND_NS),
                    prompt_tokens=row.integer("input_toks", minimum=1),
                    output_tokens=row.integer("output_toks", minimum=0),
                    source=row.source,
                )
