"""Requests that no server gets: a file that was misread, or a slip in it."""

from __future__ import annotations

import numpy as np

from kvtwin.workloads.columns import RecordColumns
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_MOST_TOKENS = 4_000_000
"""More than the context of any model that vLLM serves."""

_LONGEST_S = 366 * 86_400


class Extremes:
    """Looks at every request once, and tells what cannot be meant."""

    def __init__(self) -> None:
        self._largest = {"prompt": (0, ""), "output": (0, "")}
        self._numbers = {"prompt": 0, "output": 0}

    def add(self, record: RequestRecord) -> None:
        """The next request."""
        if record.prompt_tokens > _MOST_TOKENS:
            self._add("prompt", record.prompt_tokens, record.source)
        if record.output_tokens > _MOST_TOKENS:
            self._add("output", record.output_tokens, record.source)

    def add_columns(self, columns: RecordColumns) -> None:
        """The next requests."""
        for what, tokens in (("prompt", columns.prompt_tokens), ("output", columns.output_tokens)):
            for index in np.flatnonzero(tokens > _MOST_TOKENS).tolist():
                self._add(what, int(tokens[index]), columns.source(index))

    def _add(self, what: str, tokens: int, source: str) -> None:
        self._numbers[what] += 1
        self._largest[what] = max(self._largest[what], (tokens, source))

    def sentences(self, last_arrival_ns: int) -> list[str]:
        """A sentence for each kind."""
        found = []
        for what, number in self._numbers.items():
            if number:
                tokens, source = self._largest[what]
                more = f" (and {number - 1:,} more above {_MOST_TOKENS:,})" if number > 1 else ""
                found.append(f"{source}: {what} of {tokens:,} tokens, more than any model takes{more}")
        if last_arrival_ns > _LONGEST_S * SECOND_NS:
            years = last_arrival_ns / SECOND_NS / _LONGEST_S
            found.append(f"the last request arrives {years:,.1f} years after the start: look at the unit of the times")
        return found
