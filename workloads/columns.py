"""Requests as columns of numbers, for files whose rows say nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvtwin.workloads.request_record import RequestRecord

Integers = NDArray[np.int64]


class NotPlainError(Exception):
    """Columns cannot hold a file, or something is wrong with it: then it is read request by request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """Some requests that follow one another in a file; all arrays but ``hash_ids`` have one entry per request.

    ``rows`` counts the rows of all files from 0, and names the request; ``line_of_row`` is its line less that number.
    ``hash_ids`` are those of all requests, one behind the other, and ``num_ids`` says how many each has; both are None
    where only lengths are known. Everything else about the requests is as :class:`RequestRecord` has it by default.
    """

    path: Path
    line_of_row: int
    rows: Integers
    arrival_ns: Integers
    prompt_tokens: Integers
    output_tokens: Integers
    hash_ids: Integers | None = None
    num_ids: Integers | None = None
    hash_block_tokens: int | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def source(self, index: int) -> str:
        """Where the request of this index was read."""
        return f"{self.path}:{int(self.rows[index]) + self.line_of_row}"

    def records(self) -> Iterator[RequestRecord]:
        """An object per request."""
        columns = (self.rows, self.arrival_ns, self.prompt_tokens, self.output_tokens)
        last = 0 if self.num_ids is None else np.cumsum(self.num_ids).tolist()
        first = 0
        for index, (row, arrival_ns, prompt_tokens, output_tokens) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            hash_ids = None
            if self.hash_ids is not None:
                hash_ids = self.hash_ids[first : last[index]].tolist()
                first = last[index]
            yield RequestRecord(
                request_id=str(row),
                arrival_ns=arrival_ns,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                hash_ids=hash_ids,
                hash_block_tokens=self.hash_block_tokens,
                source=f"{self.path}:{row + self.line_of_row}",
            )
