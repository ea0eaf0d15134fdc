"""LLMServingSim's JSON-lines workloads: lengths, arrivals in ns and, in some files, the tokens themselves.

``{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 46926808, "input_tok_ids": [1, 2],
"output_tok_ids": [3]}``. Source: https://github.com/casys-kaist/LLMServingSim, ``workloads``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from workloads.json_rows import JsonRow, json_rows
from workloads.reader import Reader, names_in
from workloads.request_record import RequestRecord


@dataclass(frozen=True)
class LLMServingSimReader(Reader):
    """Reads flat rows; session rows (``sub_requests``) are refused, other keys ignored."""

    name: ClassVar[str] = "llmservingsim"

    @property
    def first_line_names(self) -> frozenset[str]:
        return frozenset(("input_toks", "output_toks", "arrival_time_ns"))

    def recognises(self, first_lines: list[str]) -> bool:
        return super().recognises(first_lines) or "sub_requests" in names_in(next(iter(first_lines), ""))

    def read(self, path: Path) -> Iterator[RequestRecord]:
        for index, row in enumerate(json_rows(path)):
            if "sub_requests" in row.values:
                raise row.error("sub_requests", "an LLMServingSim session row, which is not supported yet")
            prompt_tokens = row.integer("input_toks", minimum=1)
            output_tokens = row.integer("output_toks", minimum=0)
            yield RequestRecord(
                request_id=str(index),
                arrival_ns=row.time_ns("arrival_time_ns", 1),
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                token_ids=_token_ids(row, "input_tok_ids", prompt_tokens),
                output_token_ids=_token_ids(row, "output_tok_ids", output_tokens),
                source=row.source,
            )


def _token_ids(row: JsonRow, key: str, num_tokens: int) -> list[int] | None:
    if row.values.get(key) is None:
        return None
    token_ids = row.integers(key, minimum=0)
    if len(token_ids) != num_tokens:
        raise row.error(key, f"expected {num_tokens} ids, got {len(token_ids)}")
    return token_ids
