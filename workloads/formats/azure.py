"""The CSV files of the Azure LLM inference traces of 2023, 2024 and 2025: lengths and wall-clock times only.

``TIMESTAMP,ContextTokens,GeneratedTokens`` with rows like ``2023-11-16 18:17:03.9799600,4808,10``; 2024 has
a zone, ``+00:00``, behind the time. The one of large multimodal models (2025) has a column ``NumImages`` too. Source: https://github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvtwin.workloads.columns import RecordColumns
from kvtwin.workloads.formats.csv_columns import csv_columns
from kvtwin.workloads.formats.dates import DateParser
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord

_IMAGES = "images count as tokens of the prompt; the file does not say how many each has"
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True)
class AzureReader(Reader):
    """Reads the Azure traces. Arrivals are ns since 1970; a time without zone is UTC."""

    name: ClassVar[str] = "azure"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(_COLUMNS)

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        dates = DateParser()
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if "NumImages" in row.values:
                    rows.notes[_IMAGES] = None
                yield RequestRecord(
                    request_id=str(index),
                    arrival_ns=dates.of(row, "TIMESTAMP"),
                    prompt_tokens=row.integer("ContextTokens", minimum=1),
                    output_tokens=row.integer("GeneratedTokens", minimum=0),
                    source=row.source,
                )

    def columns(self, rows: Rows) -> Iterator[RecordColumns]:
        for path, first, part in csv_columns(rows.paths):
            if "NumImages" in part.names:
                rows.notes[_IMAGES] = None
            yield RecordColumns(
                path=path,
                line_of_row=part.line - first,
                rows=np.arange(first, first + part.num_rows),
                arrival_ns=part.dates_ns("TIMESTAMP"),
                prompt_tokens=part.integers("ContextTokens", minimum=1),
                output_tokens=part.integers("GeneratedTokens"),
            )
