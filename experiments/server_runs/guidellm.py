"""GuideLLM's ``benchmarks.json``, as requests that a server served.

Field names and units are those of its classes ``GenerativeRequestStats`` and ``RequestTimings``
(https://github.com/vllm-project/guidellm, src/guidellm/schemas), and up to 0.3 ``GenerativeTextResponseStats``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.json_files import number, whole_number
from kvtwin.experiments.server_runs.served import ServedRequest, since_first_arrival
from kvtwin.workloads.time_units import SECOND_NS

_TIMES = (
    ("request_start", "start_time"),
    ("first_token_iteration", "first_token_time"),
    ("last_token_iteration", "last_token_time"),
)
"""When a request was sent, and when its first and its last token came: Unix time in s, by its name now and once."""


def requests_of_guidellm(path: Path, data: dict[str, Any]) -> list[ServedRequest]:
    """The requests that succeeded, in order of arrival. UserError: not such a file, or of several benchmarks."""
    benchmarks = data["benchmarks"]
    if not isinstance(benchmarks, list) or not all(isinstance(each, dict) for each in benchmarks):
        raise UserError(f"{path}: benchmarks: expected a list of objects, as guidellm writes it")
    if len(benchmarks) != 1:
        raise UserError(
            f"{path}: expected one benchmark, got {len(benchmarks)}: record each load in a file of its own, not a sweep"
        )
    requests = benchmarks[0].get("requests")
    rows = requests.get("successful") if isinstance(requests, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{path}: benchmarks[0].requests.successful: expected a list")
    return since_first_arrival(path, [_request(f"{path}: request {index}", row) for index, row in enumerate(rows)])


def _request(where: str, row: Any) -> ServedRequest:
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object")
    info = row.get("info")
    timings = info.get("timings") if isinstance(info, dict) else None
    times_ns = []
    for now, once in _TIMES:
        time_s = timings.get(now) if isinstance(timings, dict) else row.get(once)
        if time_s is None and now != _TIMES[0][0]:
            raise UserError(f"{where}: has no {now}: record a stream, which is guidellm's default")
        times_ns.append(round(number(where, time_s, now) * SECOND_NS))
    prompt, output = (whole_number(where, row.get(name), name) for name in ("prompt_tokens", "output_tokens"))
    return ServedRequest(str(row.get("request_id")), prompt, output, *times_ns)
