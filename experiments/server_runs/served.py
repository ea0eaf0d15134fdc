"""Requests as a server served them, from its own record or from a simulation: when each came, spoke and ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records.reader import Columns
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_LONGEST_RUN_NS = 30 * 86_400 * SECOND_NS
"""From the first arrival to the last token; more means that times are of two clocks."""


class ServedRequest(NamedTuple):
    """One request; times in ns since the first arrival of the run."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    arrival_ns: int
    first_token_ns: int
    last_token_ns: int


def since_first_arrival(path: Path, requests: list[ServedRequest]) -> list[ServedRequest]:
    """``requests`` in order of arrival, with times since the first one.

    UserError: there are none in ``path``, or their times cannot be of one clock.
    """
    if not requests:
        raise UserError(f"{path}: no request succeeded with any output token")
    for request in requests:
        if not request.arrival_ns <= request.first_token_ns <= request.last_token_ns:
            raise UserError(
                f"{path}: request {request.request_id}: expected it to arrive, to get its first and its last token in "
                "this order: record all times with one clock"
            )
    served = _since(min(request.arrival_ns for request in requests), requests)
    longest_ns = max(request.last_token_ns for request in served)
    if longest_ns > _LONGEST_RUN_NS:
        raise UserError(
            f"{path}: requests are served over {longest_ns / 86_400 / SECOND_NS:,.0f} days: record all times with one "
            "clock"
        )
    return served


def _since(origin_ns: int, requests: Iterable[ServedRequest]) -> list[ServedRequest]:
    """In order of arrival, with times since ``origin_ns``."""
    moved = (
        request._replace(
            arrival_ns=request.arrival_ns - origin_ns,
            first_token_ns=request.first_token_ns - origin_ns,
            last_token_ns=request.last_token_ns - origin_ns,
        )
        for request in requests
    )
    return sorted(moved, key=lambda request: request.arrival_ns)


def served_in_run(requests: Columns) -> list[ServedRequest]:
    """The requests of a run of ours that ended with at least one token, in order of arrival."""
    names = ("request_id", "prompt_tokens", "output_tokens", "arrival_ns", "first_token_ns", "finish_ns")
    columns = [np.asarray(requests[name]).tolist() for name in names]
    served = [ServedRequest(str(name), *rest) for name, *rest in zip(*columns, strict=True)]
    origin_ns = min(request.arrival_ns for request in served)
    ended = (request for request in served if request.first_token_ns >= 0 and request.last_token_ns >= 0)
    return _since(origin_ns, ended)


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
