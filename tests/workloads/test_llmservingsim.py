import json

import pytest

from kvtwin.workloads import WorkloadError, open_workload


def test_a_public_trace_with_tokens(public_trace):
    workload = open_workload(public_trace("llmservingsim/sharegpt-llama-3.1-8b-300-sps10.relabelled.jsonl.gz"))
    records = list(workload)
    assert (workload.format_name, len(workload), len(records)) == ("llmservingsim", 300, 300)
    assert records[0].arrival_ns == 46_926_808
    assert sum(record.prompt_tokens for record in records) == 257_239
    assert sum(len(record.output_token_ids) for record in records) == 195_753


def test_a_public_trace_of_lengths(public_trace):
    records = list(open_workload(public_trace("llmservingsim/workload_me2_01_mixed.jsonl")))
    assert len(records) == 608
    assert not any(record.knows_prefix for record in records)


GOOD = '{"input_toks": 2, "output_toks": 1, "arrival_time_ns": 5, "input_tok_ids": [1, 2], "output_tok_ids": [3]}'


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (GOOD.replace("[1, 2]", "[1]"), "input_tok_ids: expected 2 ids, got 1"),
        (GOOD.replace("[3]", "[]"), "output_tok_ids: expected 1 ids, got 0"),
        (GOOD.replace("[1, 2]", '[1, "2"]'), "input_tok_ids[1]: expected an integer, got '2'"),
        (GOOD.replace("[1, 2]", "[true, 2]"), "input_tok_ids[0]: expected an integer, got True"),
        (GOOD.replace("[1, 2]", "[1, -2]"), "input_tok_ids: expected integers of at least 0, got -2"),
        (GOOD.replace("[1, 2]", '"12"'), "input_tok_ids: expected a list of integers, got '12'"),
        (GOOD.replace("5", "-5"), "arrival_time_ns: expected a time of 0 or more ns, got -5"),
        (
            '{"session_id": "a", "arrival_time_ns": 0, "sub_requests": [{"input_toks": 0}]}',
            "sub_requests[0]: input_toks: expected an integer of at least 1, got 0",
        ),
        ('{"arrival_time_ns": 0, "sub_requests": []}', "session_id: expected this key, but it is missing"),
        (
            '{"session_id": "a", "arrival_time_ns": 0, "sub_requests": 5}',
            "sub_requests: expected a list of objects, got 5",
        ),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(GOOD, bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:2: {message}"


def test_sessions_and_flat_rows_mix(write):
    """A tool takes its time behind an answer; that of the last one delays nobody."""
    turns = [
        {
            "input_toks": 4,
            "output_toks": 2,
            "tool_duration_ns": 70,
            "input_tok_ids": [1, 2, 3, 4],
            "output_tok_ids": [5, 6],
        },
        {"input_toks": 8, "output_toks": 1},
        {"input_toks": 9, "output_toks": 1, "tool_duration_ns": 9},
    ]
    session = json.dumps({"session_id": "a", "arrival_time_ns": 3, "sub_requests": turns})
    workload = open_workload(write(session, GOOD))
    first, flat, second, third = workload
    assert (workload.format_name, workload.num_unsorted) == ("llmservingsim", 1)
    assert [record.request_id for record in workload] == ["a/0", "1", "a/1", "a/2"]
    assert [(record.session, record.think_time_ns) for record in workload] == [
        ("a", None), (None, None), ("a", 70), ("a", 0),
    ]  # fmt: skip
    assert [record.arrival_ns for record in (first, second, third, flat)] == [3, 73, 73, 5]
    assert (first.token_ids, first.output_token_ids, second.token_ids) == ([1, 2, 3, 4], [5, 6], None)
