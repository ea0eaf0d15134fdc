"""LLMServingSim's JSON-lines workloads: lengths, arrivals in ns and, in some files, the tokens themselves.

``{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 46926808, "input_tok_ids": [1, 2],
"output_tok_ids": [3]}``, or sessions: ``{"session_id": "a", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 2,
"output_toks": 1, "tool_duration_ns": 5}]}``. Source: https://github.com/casys-kaist/LLMServingSim, ``workloads``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord


@dataclass(frozen=True)
class LLMServingSimReader(Reader):
    """Reads flat rows and sessions, mixed as they come; other keys are ignored.

    Each of a session's ``sub_requests`` gives its whole prompt. The next one comes ``tool_duration_ns``, 0 where it is
    missing, after the answer.
    """

    name: ClassVar[str] = "llmservingsim"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("input_toks", "output_toks", "arrival_time_ns"))

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        return super().recognises(first_rows) or bool(first_rows and "sub_requests" in first_rows[0].values)

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if "sub_requests" in row.values:
                    yield from list(_session(row))
                else:
                    record = _request(row, str(index))
                    record.arrival_ns = row.time_ns("arrival_time_ns", 1)
                    yield record


def _session(row: JsonRow) -> Iterator[RequestRecord]:
    name = row.text("session_id")
    arrival_ns = row.time_ns("arrival_time_ns", 1)
    pause_ns = None
    for turn, sub_request in enumerate(row.objects("sub_requests")):
        arrival_ns += pause_ns or 0
        record = _request(sub_request, f"{name}/{turn}")
        record.arrival_ns, record.session, record.think_time_ns = arrival_ns, name, pause_ns
        yield record
        pause_ns = sub_request.time_ns("tool_duration_ns", 1) if "tool_duration_ns" in sub_request.values else 0


def _request(row: JsonRow, request_id: str) -> RequestRecord:
    prompt_tokens = row.integer("input_toks", minimum=1)
    output_tokens = row.integer("output_toks", minimum=0)
    return RequestRecord(
        request_id=request_id,
        arrival_ns=0,
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
