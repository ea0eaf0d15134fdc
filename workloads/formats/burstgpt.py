"""BurstGPT's CSV files: requests of a chat service, lengths and whole seconds.

``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``, and in the newer variant ``Session ID`` and
``Elapsed time`` too. Source: https://github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvtwin.workloads.columns import NotPlainError, RecordColumns
from kvtwin.workloads.formats.csv_columns import csv_columns
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_FAILED = "no response tokens (the request failed)"


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
                    rows.left_out[_FAILED] += 1
                    continue
                yield RequestRecord(
                    request_id=str(index),
                    arrival_ns=arrival_ns,
                    prompt_tokens=row.integer("Request tokens", minimum=1),
                    output_tokens=output_tokens,
                    session=row.text("Session ID") if "Session ID" in row.values else None,
                    source=row.source,
                )

    def columns(self, rows: Rows) -> Iterator[RecordColumns]:
        for path, first, part in csv_columns(rows.paths):
            if "Session ID" in part.names:
                raise NotPlainError
            output_tokens = part.integers("Response tokens")
            (answered,) = np.nonzero(output_tokens)
            rows.left_out[_FAILED] += part.num_rows - len(answered)
            prompt_tokens = part.integers("Request tokens")[answered]
            if not prompt_tokens.all():
                raise NotPlainError
            yield RecordColumns(
                path=path,
                line_of_row=part.line - first,
                rows=first + answered,
                arrival_ns=part.times_ns("Timestamp")[answered],
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens[answered],
            )
