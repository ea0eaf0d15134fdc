"""BurstGPT's CSV files: requests of a chat service, lengths and whole seconds.

``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``, and in the newer variant ``Session ID`` and
``Elapsed time`` too. Source: https://github.com/HPMLL/BurstGPT.
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
class BurstGPTReader(Reader):
    """Reads both variants. Rows without response tokens are requests that failed: they are left out and counted.

    Nothing says what prompts share, nor whether a prompt repeats its session so far: every prompt is known by length.
    """

    name: ClassVar[str] = "burstgpt"
    wall_clock: ClassVar[bool] = True
    """Seconds from the midnight before the first day's requests."""

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("Timestamp", "Request tokens", "Response tokens"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        for index, row in enumerate(rows):
            with rows.bad_lines:
                arrival_ns = row.time_ns("Timestamp", SECOND_NS)
                output_tokens = row.integer("Response tokens", minimum=0)
                if not output_tokens:
                    rows.left_out["no response tokens (the request failed)"] += 1
                    continue
                yield RequestRecord(
                    request_id=str(index),
                    arrival_ns=arrival_ns,
                    prompt_tokens=row.integer("Request tokens", minimum=1),
                    output_tokens=output_tokens,
                    session=row.text("Session ID") if "Session ID" in row.values else None,
                    source=row.source,
                )
