"""What ``vllm bench serve --save-result --save-detailed`` writes, as requests that a server served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.server_runs.served import ServedRequest
from kvtwin.workloads.time_units import SECOND_NS

_COLUMNS = ("input_lens", "output_lens", "ttfts", "itls", "start_times")


def read_bench_json(path: Path) -> list[ServedRequest]:
    """The requests that succeeded, in order of arrival. UserError: not such a file, or without its details."""
    data = _object(path)
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
        except (TypeError, ValueError):
            raise UserError(f"{path}: request {index}: expected numbers, and a list of them in itls") from None
        requests.append((float(start_s), first_s, last_s, index, *lengths))
    if not requests:
        raise UserError(f"{path}: no request succeeded")
    requests.sort()
    origin_s = requests[0][0]

    def ns(time_s: float) -> int:
        return round((time_s - origin_s) * SECOND_NS)

    return [
        ServedRequest(str(index), prompt, output, ns(start_s), ns(first_s), ns(last_s))
        for start_s, first_s, last_s, index, prompt, output in requests
    ]


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected the JSON object that vllm bench serve writes")
    return data
