"""Results of ``vllm bench serve --save-result --save-detailed``: one JSON object with a list entry per request.

``{"endpoint_type": "vllm", "tokenizer_id": "m", "input_lens": [2358], "output_lens": [531], "start_times": [27536.66],
"errors": [""], ...}``. Source: vLLM, ``vllm/benchmarks/serve.py``; `kvtwin export --to vllm-bench` writes it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow, is_list, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS


@dataclass(frozen=True)
class VllmBenchReader(Reader):
    """Reads lengths, and arrivals where the file has ``start_times``; those that failed are left out and counted."""

    name: ClassVar[str] = "vllm-bench"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("tokenizer_id", "total_input_tokens", "request_throughput"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        for number, row in enumerate(rows):
            with rows.bad_lines:
                yield from list(_requests(rows, row, number))


def _requests(rows: Rows, row: JsonRow, number: int) -> Iterator[RequestRecord]:
    if "input_lens" not in row.values:
        raise row.error("input_lens", "missing: only `vllm bench serve --save-detailed` keeps single requests")
    lengths = row.integers("input_lens", minimum=0)
    outputs = _list(row, "output_lens", len(lengths))
    errors = _list(row, "errors", len(lengths)) if "errors" in row.values else [""] * len(lengths)
    starts: list[Any] = []
    if "start_times" in row.values:
        starts = _list(row, "start_times", len(lengths))
    else:
        rows.has_starts = False
    times = JsonRow(row.source, {f"start_times[{index}]": value for index, value in enumerate(starts)})
    times_ns = [times.time_ns(name, SECOND_NS) for name in times.values] or [0] * len(lengths)
    checked = JsonRow(row.source, {f"output_lens[{index}]": value for index, value in enumerate(outputs)})
    first_ns = min(times_ns, default=0)
    for index, (prompt_tokens, name) in enumerate(zip(lengths, checked.values, strict=True)):
        output_tokens = checked.integer(name, minimum=0)
        if errors[index] or not (prompt_tokens and output_tokens):
            rows.left_out["the request failed"] += 1
            continue
        yield RequestRecord(
            request_id=f"{number}/{index}" if number else str(index),
            arrival_ns=times_ns[index] - first_ns,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            source=f"{row.source}: request {index}",
        )


def _list(row: JsonRow, key: str, length: int) -> list[Any]:
    values = row.required(key)
    if not is_list(values) or len(values) != length:
        raise row.error(key, f"expected one value for each of {length} requests, got {shown(values)}")
    return values
