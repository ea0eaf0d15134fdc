"""Readers of sessions whose rows tell how much of a prompt was there before, and of what servers left."""

import json

import pytest

from kvtwin.workloads import WorkloadError, open_workload
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS
from tests.workloads.test_format_table import DATA

HEADER = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"


def test_tracelab_rounds_repeat_what_they_say_they_repeat(write):
    path = write(HEADER, "a,0,0,10,5,4,100", "a,0,1,19,6,2,0", "b,50,0,8,3,1,0", "a,0,2,12,9,1,0")
    first, second, other, third = (
        sorted(open_workload(path), key=lambda record: (record.session, record.request_id))[0:2]
        + [record for record in open_workload(path) if record.session == "b"]
        + [record for record in open_workload(path) if record.request_id == "a/2"]
    )
    whole = [*first.token_ids, *first.output_token_ids]
    assert (len(whole), list(second.token_ids[:19])) == (19, whole)
    assert second.prompt_tokens == 25
    assert list(third.token_ids[:12]) == whole[:12]
    assert set(third.token_ids[12:]).isdisjoint(second.token_ids)
    assert list(other.token_ids[:8]) == list(first.token_ids[:8])  # what was there before a session began
    assert (second.think_time_ns, third.think_time_ns, other.arrival_ns) == (
        100 * MILLISECOND_NS,
        0,
        50 * MILLISECOND_NS,
    )


def test_a_log_of_rounds_gives_the_hits_that_the_provider_reported(public_trace):
    path = public_trace("tracelab/round_trace.sanitized.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    before = {}
    shared = 0
    for record in open_workload(path):
        earlier = before.get(record.session, [])
        common = next(
            (i for i, (a, b) in enumerate(zip(earlier, record.token_ids, strict=False)) if a != b),
            min(len(earlier), len(record.token_ids)),
        )
        shared += common
        before[record.session] = [*record.token_ids, *record.output_token_ids]
    reported = sum(row["prefix_tokens"] for row in rows if row["round_index"])
    assert shared == reported


def test_failed_requests_of_a_benchmark_are_left_out(write):
    result = {
        "tokenizer_id": "m",
        "total_input_tokens": 30,
        "request_throughput": 1.0,
        "input_lens": [10, 20, 30],
        "output_lens": [5, 0, 7],
        "errors": ["", "timeout", ""],
        "start_times": [100.5, 101.0, 102.5],
    }
    workload = open_workload(write(json.dumps(result)))
    assert [(record.request_id, record.arrival_ns) for record in workload] == [("0", 0), ("2", 2 * SECOND_NS)]
    assert workload.warnings == ("left out 1 row: the request failed",)
    del result["start_times"]
    assert not open_workload(write(json.dumps(result, indent=2))).has_starts
    del result["input_lens"]
    with pytest.raises(WorkloadError, match="input_lens: missing: only `vllm bench serve --save-detailed`"):
        open_workload(write(json.dumps(result)))


def stored(hashes, parent, first, **fields):
    tokens = list(range(first, first + 4 * len(hashes)))
    return (
        {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
        | {"block_size": 4}
        | fields
    )


def test_requests_made_out_from_kv_events(write):
    batches = [
        [10.0, [stored([1, 2], None, 0)], 0],
        [10.5, [stored([3], 2, 8), stored([9], None, 90, group_idx=1)], 0],
        [11.0, [["BlockStored", [4], 3, [12, 13, 14, 15], 4, None], {"type": "BlockRemoved", "block_hashes": [1]}], 0],
        [12.0, [stored([5, 6], 4, 16)], 0],
        [13.0, [stored([7, 8], 2, 70), {"type": "AllBlocksCleared"}], 0],
    ]
    found = list(open_workload(write(*map(json.dumps, batches))))
    assert [(list(record.token_ids), record.output_tokens) for record in found] == [
        (list(range(8)), 8),
        (list(range(24)), 1),
        ([*range(8), *range(70, 78)], 1),
    ]
    assert [record.arrival_ns for record in found] == [0, 2 * SECOND_NS, 3 * SECOND_NS]
    assert list(found[0].output_token_ids) == list(range(8, 16))


def test_spans_of_a_conversation_wait_for_one_another():
    first, second = open_workload(DATA / "otlp.handwritten.json")
    assert (first.prompt_tokens, first.output_tokens, second.prompt_tokens) == (120, 30, 180)
    assert (first.think_time_ns, second.think_time_ns) == (None, 2_500_000_000)
    assert (first.session, second.session) == ("t0", "t0")
