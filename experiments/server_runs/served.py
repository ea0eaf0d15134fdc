"""Requests as a server served them, from its own record or from a simulation: when each came, spoke and ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.reader import Columns
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_NUMBERS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_LONGEST_WAIT_S = 60.0
"""Longest time that a server may take to notice a request; more means that its two clocks do not belong together."""


class ServedRequest(NamedTuple):
    """One request; times in ns since the first arrival of the run."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrival_ns: int
    first_token_ns: int
    last_token_ns: int


def read_request_rows(path: Path) -> list[ServedRequest]:
    """The rows of a ``requests.jsonl`` in order of arrival, one JSON object per request.

    ``input_toks``, ``output_toks``; ``arrival_time``, s on the clock of whoever took the request; and on the
    scheduler's clock, in s, ``queued_ts``, ``first_token_ts``, ``last_token_ts``: the fields of vLLM's request
    statistics, as LLMServingSim records them. The scheduler sees a request between two steps only. So the two clocks
    are taken to be apart by the least difference of any request, and the rest is waiting, which counts.

    UserError: a row that is not such a record, or clocks that cannot belong together.
    """
    rows = []
    for number, line in enumerate(_lines(path), start=1):
        rows.append(_row(f"{path}:{number}", line))
    if not rows:
        raise UserError(f"{path}: expected a row per request, found none")
    apart_s = [row["queued_ts"] - row["arrival_time"] for row in rows]
    if max(apart_s) - min(apart_s) > _LONGEST_WAIT_S:
        raise UserError(
            f"{path}: arrival_time and queued_ts drift apart by {max(apart_s) - min(apart_s):,.0f} s: "
            "record each of them with one clock throughout"
        )
    rows.sort(key=lambda row: row["arrival_time"])
    origin_s = rows[0]["arrival_time"]

    def since_start(time_s: float) -> int:
        return round((time_s - origin_s - min(apart_s)) * SECOND_NS)

    return [
        ServedRequest(
            str(row["request_id"]),
            row["input_toks"],
            row["output_toks"],
            round((row["arrival_time"] - origin_s) * SECOND_NS),
            since_start(row["first_token_ts"]),
            since_start(row["last_token_ts"]),
        )
        for row in rows
    ]


def served_in_run(requests: Columns) -> list[ServedRequest]:
    """The requests of a run of ours that ended with at least one token, in order of arrival."""
    names = ("request_id", "prompt_tokens", "output_tokens", "arrival_ns", "first_token_ns", "finish_ns")
    columns = [np.asarray(requests[name]).tolist() for name in names]
    served = [ServedRequest(str(name), *rest) for name, *rest in zip(*columns, strict=True)]
    origin_ns = min(request.arrival_ns for request in served)
    return sorted(
        (
            request._replace(
                arrival_ns=request.arrival_ns - origin_ns,
                first_token_ns=request.first_token_ns - origin_ns,
                last_token_ns=request.last_token_ns - origin_ns,
            )
            for request in served
            if request.first_token_ns >= 0 and request.last_token_ns >= 0
        ),
        key=lambda request: request.arrival_ns,
    )


def arriving_as_served(records: Iterable[RequestRecord], served: Sequence[ServedRequest]) -> list[RequestRecord]:
    """The records of a workload with the arrivals of ``served``, request by request in order of arrival.

    UserError: they are not the same requests.
    """
    records = sorted(records, key=lambda record: record.arrival_ns)
    if len(records) != len(served):
        raise UserError(f"the workload has {len(records):,} requests, and the server's record {len(served):,}")
    for record, request in zip(records, served, strict=True):
        lengths = record.prompt_tokens, record.output_tokens
        if lengths != (request.prompt_tokens, request.output_tokens):
            raise UserError(
                f"{record.source}: expected {request.prompt_tokens} prompt and {request.output_tokens} output tokens, "
                f"as the server's record of request {request.request_id} has, got {lengths[0]} and {lengths[1]}"
            )
        record.arrival_ns = request.arrival_ns
    return records


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise UserError(f"{where}: expected a JSON object") from None
    if not isinstance(row, dict) or "request_id" not in row:
        raise UserError(f"{where}: expected a JSON object with request_id")
    for name in _NUMBERS:
        kinds = int if name.endswith("_toks") else (int, float)
        if not isinstance(row.get(name), kinds) or isinstance(row.get(name), bool):
            raise UserError(f"{where}: {name}: expected a number, got {row.get(name)!r}")
    if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
        raise UserError(f"{where}: expected queued_ts, first_token_ts and last_token_ts in this order")
    return row
