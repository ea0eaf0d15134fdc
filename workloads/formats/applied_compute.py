"""Applied Compute's agentic workloads: lengths of tool-calling sessions, a session a line.

``{"num_turns": 2, "input_prompt_length": 16, "assistant_response_length": [4, 4], "tool_call_output_length": [8, 8],
"tool_call_latency": [0.01, 0.02], "final_assistant_response_length": 4}``, latencies in seconds. Source:
https://github.com/ai-dynamo/dynamo, ``applied_compute_agentic``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.growing_prompt import GrowingPrompt
from kvtwin.workloads.formats.json_rows import JsonRow, is_list, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS


@dataclass(frozen=True)
class AppliedComputeReader(Reader):
    """Reads sessions of ``num_turns + 1`` requests; each prompt is the one before, its answer and a tool's output.

    Sessions have no start, and nothing says what they share with each other.
    """

    name: ClassVar[str] = "applied-compute"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("num_turns", "input_prompt_length", "assistant_response_length"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        rows.has_starts = False
        for index, row in enumerate(rows):
            with rows.bad_lines:
                yield from list(_session(row, index))


def _session(row: JsonRow, index: int) -> Iterator[RequestRecord]:
    num_turns = row.integer("num_turns", minimum=0)
    new_tokens = [
        row.integer("input_prompt_length", minimum=1),
        *_lengths(row, "tool_call_output_length", num_turns),
    ]
    outputs = _lengths(row, "assistant_response_length", num_turns)
    outputs.append(row.integer("final_assistant_response_length", minimum=0))
    pauses_ns = _latencies_ns(row, num_turns)
    prompt = GrowingPrompt((), 1, index)
    arrivals = NominalArrivals()
    for turn, think_time_ns in enumerate([None, *pauses_ns]):
        prompt_tokens, hash_ids, hash_id_ends = prompt.add_turn(new_tokens[turn], outputs[turn])
        record = RequestRecord(
            request_id=f"{index}/{turn}",
            arrival_ns=0,
            prompt_tokens=prompt_tokens,
            output_tokens=outputs[turn],
            hash_ids=hash_ids,
            hash_id_ends=hash_id_ends,
            session=str(index),
            think_time_ns=think_time_ns,
            source=row.source,
        )
        record.arrival_ns = arrivals.add(record, 0)
        yield record


def _lengths(row: JsonRow, key: str, number: int) -> list[int]:
    lengths = row.integers(key, minimum=0)
    if len(lengths) != number:
        raise row.error(key, f"expected one for each of {number} turns, got {len(lengths)}")
    return list(lengths)


def _latencies_ns(row: JsonRow, number: int) -> list[int]:
    latencies = row.required("tool_call_latency")
    if not is_list(latencies) or len(latencies) != number:
        raise row.error("tool_call_latency", f"expected a list of {number} times, got {shown(latencies)}")
    one_by_one = JsonRow(row.source, {f"tool_call_latency[{index}]": value for index, value in enumerate(latencies)})
    return [one_by_one.time_ns(key, SECOND_NS) for key in one_by_one.values]
