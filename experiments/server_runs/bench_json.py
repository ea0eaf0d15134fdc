"""What ``vllm bench serve --save-result --save-detailed`` writes, as requests that a server served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.json_files import number, whole_number
from kvtwin.experiments.server_runs.served import ServedRequest, since_first_arrival
from kvtwin.workloads.time_units import SECOND_NS

_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")


def requests_of_bench(path: Path, data: dict[str, Any]) -> list[ServedRequest]:
    """The requests that succeeded, in order of arrival. UserError: not such a file, or without its details."""
    missing = [name for name in _COLUMNS if not isinstance(data.get(name), list)]
    if missing:
        raise UserError(f"{path}: {missing[0]} is missing: record with vllm bench serve --save-result --save-detailed")
    columns = [data[name] for name in _COLUMNS]
    if len({len(column) for column in columns}) != 1:
        raise UserError(f"{path}: {', '.join(_COLUMNS)}: expected lists of equal length")
    errors = data.get("errors") or [""] * len(columns[0])
    if not isinstance(errors, list) or len(errors) != len(columns[0]):
        raise UserError(f"{path}: errors: expected a list with an entry per request")
    requests = []
    for index, (prompt, output, ttft_s, itls_s, start_s) in enumerate(zip(*columns, strict=True)):
        if errors[index] or not output:
            continue
        where = f"{path}: request {index}"
        if not isinstance(itls_s, list):
            raise UserError(f"{where}: itls: expected a list of numbers")
        first_s = number(where, start_s, "start_times") + number(where, ttft_s, "ttfts")
        last_s = first_s + sum(number(where, itl_s, "itls") for itl_s in itls_s)
        lengths = whole_number(where, prompt, "input_lens"), whole_number(where, output, "output_lens")
        times_ns = [round(time_s * SECOND_NS) for time_s in (start_s, first_s, last_s)]
        requests.append(ServedRequest(str(index), *lengths, *times_ns))
    return since_first_arrival(path, requests)
