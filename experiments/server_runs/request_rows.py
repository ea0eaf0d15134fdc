"""A ``requests.jsonl``, a row per request, as requests that a server served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.json_files import Row, number, whole_number
from kvtwin.experiments.server_runs.served import ServedRequest, since_first_arrival
from kvtwin.workloads.time_units import SECOND_NS

_LENGTHS = ("input_toks", "output_toks")
_TIMES = ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_LONGEST_WAIT_S = 60.0
"""Longest time that a server may take to notice a request; more means that its two clocks do not belong together."""


def requests_of_rows(path: Path, rows: list[Row]) -> list[ServedRequest]:
    """The rows of a ``requests.jsonl`` in order of arrival.

    ``input_toks``, ``output_toks``; ``arrival_time``, s on the clock of whoever took the request; and on the
    scheduler's clock, in s, ``queued_ts``, ``first_token_ts``, ``last_token_ts``: the fields of vLLM's request
    statistics, as LLMServingSim records them. The scheduler sees a request between two steps only. So the two clocks
    are taken to be apart by the least difference of any request, and the rest is waiting, which counts.

    UserError: a row that is not such a record, or clocks that cannot belong together.
    """
    for where, row in rows:
        _check(where, row)
    apart_s = [row["queued_ts"] - row["arrival_time"] for _, row in rows]
    if max(apart_s) - min(apart_s) > _LONGEST_WAIT_S:
        raise UserError(
            f"{path}: arrival_time and queued_ts drift apart by {max(apart_s) - min(apart_s):,.0f} s: "
            "record each of them with one clock throughout"
        )
    origin_s = min(row["arrival_time"] for _, row in rows)

    def since_start_ns(row: dict[str, Any], name: str) -> int:
        return round((row[name] - origin_s - min(apart_s)) * SECOND_NS)

    requests = [
        ServedRequest(
            str(row["request_id"]),
            row["input_toks"],
            row["output_toks"],
            round((row["arrival_time"] - origin_s) * SECOND_NS),
            since_start_ns(row, "first_token_ts"),
            since_start_ns(row, "last_token_ts"),
        )
        for _, row in rows
    ]
    return since_first_arrival(path, requests)


def _check(where: str, row: dict[str, Any]) -> None:
    if "request_id" not in row:
        raise UserError(f"{where}: expected a JSON object with request_id")
    for name in _LENGTHS:
        whole_number(where, row.get(name), name)
    for name in _TIMES:
        number(where, row.get(name), name)
    if not row["queued_ts"] <= row["first_token_ts"] <= row["last_token_ts"]:
        raise UserError(f"{where}: expected queued_ts, first_token_ts and last_token_ts in this order")
