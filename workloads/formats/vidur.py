"""Vidur's CSV files: ``arrived_at,num_prefill_tokens,num_decode_tokens``, in seconds; some have no times.

Source: https://github.com/microsoft/vidur, ``data/processed_traces``.
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
class VidurReader(Reader):
    """Reads lengths, and arrival times where there are any."""

    name: ClassVar[str] = "vidur"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("num_prefill_tokens", "num_decode_tokens"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if not index:
                    rows.has_starts = "arrived_at" in row.values
                yield RequestRecord(
                    request_id=str(index),
                    arrival_ns=row.time_ns("arrived_at", SECOND_NS) if rows.has_starts else 0,
                    prompt_tokens=row.integer("num_prefill_tokens", minimum=1),
                    output_tokens=row.integer("num_decode_tokens", minimum=0),
                    source=row.source,
                )
