"""What ``vllm bench serve --save-result --save-detailed`` writes, as requests that a server served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
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
    requests = []
    for index, (prompt, output, ttft_s, itls_s, start_s) in enumerate(zip(*columns, strict=True)):
        if errors[index] or not output:
            continue
        try:
            first_s = float(start_s) + float(ttft_s)
            last_s = first_s + sum(map(float, itls_s))
            lengths = int(prompt), int(output)
            times_ns = [round(time_s * SECOND_NS) for time_s in (float(start_s), first_s, last_s)]
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{path}: request {index}: expected numbers, and a list of them in itls") from None
        requests.append(ServedRequest(str(index), *lengths, *times_ns))
    return since_first_arrival(path, requests)
