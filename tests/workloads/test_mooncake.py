import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.workloads import WorkloadError, open_workload
from kvtwin.workloads.formats.json_lines import decoder
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.mooncake import SECOND_NS


def row(**changes):
    values = {"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [0, 1]} | changes
    return json.dumps({key: value for key, value in values.items() if value is not ...})


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "ids"),
    [("conversation", 12_031, 3_537.0, 288_500), ("synthetic", 3_993, 1_022.0, 121_877)],
)
def test_the_public_traces(public_trace, name, rows, span_s, ids):
    workload = open_workload(public_trace(f"mooncake/{name}_trace.jsonl.gz"))
    assert (workload.format_name, len(workload), workload.num_unsorted) == ("mooncake", rows, 0)
    assert workload.warnings == ()
    assert round((workload.last_arrival_ns - workload.first_arrival_ns) / SECOND_NS, 1) == span_s
    records = list(workload)
    assert sum(len(record.hash_ids) for record in records) == ids
    assert all(record.hash_block_tokens == 512 for record in records)
    assert [record.request_id for record in records[:2]] == ["0", "1"]


def test_timestamps_are_milliseconds(write):
    (record,) = open_workload(write(row(timestamp=27_482)))
    assert record.arrival_ns == 27_482_000_000


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_decimal_times_are_exact(whole, fraction):
    text = f"{whole}.{fraction:012d}"
    got = JsonRow("", decoder.decode(f'{{"t": {text}}}')).time_ns("t", 10**6)
    assert got == round(Fraction(text) * 10**6)


@pytest.mark.parametrize("text", ["1e-999999999", "1E-400", "0.0000004999999999999999999999999"])
def test_tiny_times_are_zero(text):
    assert JsonRow("", decoder.decode(f'{{"t": {text}}}')).time_ns("t", 10**6) == 0


def test_equal_ids_stay_equal_whatever_they_are(write):
    path = write(
        row(input_length=1536, hash_ids=[2**70, "1", 1]),
        row(input_length=1536, hash_ids=["1", 2**70, 2**70 + 2**32]),
    )
    first, second = open_workload(path)
    assert (first.hash_ids, second.hash_ids) == ([0, 1, 2], [1, 0, 3])


def test_rows_without_ids_know_only_their_length(write):
    first, second = open_workload(write(row(hash_ids=...), row()))
    assert not first.knows_prefix
    assert first.hash_block_tokens is None
    assert second.knows_prefix


def test_what_else_a_row_may_say(write):
    (record,) = open_workload(write(row(request_id="a", session_id="s", priority=-2, model="ignored")))
    assert (record.request_id, record.session, record.priority) == ("a", "s", -2)
    assert record.think_time_ns is None


def test_zero_outputs_are_the_simulators_business(write):
    (record,) = open_workload(write(row(output_length=0)))
    assert record.output_tokens == 0


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(hash_ids=[0]), "hash_ids: expected ceil(1000/512) = 2 ids, got 1"),
        (row(hash_ids=7), "hash_ids: expected a list, got 7"),
        (row(hash_ids=[0, True]), "hash_ids: expected integers or strings, got True"),
        (row(hash_ids=[0, 1.5]), "hash_ids: expected integers or strings, got 1.5"),
        (row(input_length=...), "input_length: expected this key, but it is missing"),
        (row(input_length=0, hash_ids=[]), "input_length: expected an integer of at least 1, got 0"),
        (row(input_length=-5), "input_length: expected an integer of at least 1, got -5"),
        (row(input_length=10.5), "input_length: expected an integer of at least 1, got 10.5"),
        (row(input_length="1000"), "input_length: expected an integer of at least 1, got '1000'"),
        (row(input_length=True), "input_length: expected an integer of at least 1, got True"),
        (row(output_length=-1), "output_length: expected an integer of at least 0, got -1"),
        (row(output_length=None), "output_length: expected an integer of at least 0, got None"),
        (row(timestamp=-1), "timestamp: expected a time of 0 or more ms, got -1"),
        (row(timestamp="0"), "timestamp: expected a time of 0 or more ms, got '0'"),
        (row(timestamp=True), "timestamp: expected a time of 0 or more ms, got True"),
        (
            row(timestamp=10**13),
            "timestamp: expected at most 9223372036854775807 ns (292 years), got 10000000000000",
        ),
        (row(timestamp=float("nan")), "malformed JSON: NaN is not a finite number"),
        (row(timestamp=float("inf")), "malformed JSON: Infinity is not a finite number"),
        (row(priority=1.5), "priority: expected an integer, got 1.5"),
        ("{", "malformed JSON: Expecting property name enclosed in double quotes"),
        ("[1]", "expected a JSON object, got [1]"),
        (
            row(timestamp=...),
            "timestamp: missing, as in multi-turn files whose later turns give only their new tokens: "
            "read it with --format mooncake-delta",
        ),
        (
            row(delay=5),
            "delay: found, as in multi-turn files whose later turns give only their new tokens: "
            "read it with --format mooncake-delta",
        ),
        (
            row(dependencies=[]),
            "dependencies: a row of Dynamo's agentic Mooncake: read it with --format dynamo-agentic",
        ),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(row(), bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:2: {message}"


def test_vllms_defaults_are_found_out(public_trace):
    """``vllm bench serve`` reads a trace with 16 tokens an id and in seconds unless it is told otherwise."""
    path = public_trace("mooncake/conversation_trace.jsonl.gz")
    with pytest.raises(WorkloadError) as caught:
        open_workload(path, hash_block_tokens=16, time_unit_ns=SECOND_NS)
    assert str(caught.value) == (
        f"{path}:1: hash_ids: expected ceil(6758/16) = 423 ids, got 14 = ceil(6758/512): this looks "
        f"like a Mooncake "
        "trace, read it with --timed-trace-chunk-hash-size 512"
    )
    (warning,) = open_workload(path, time_unit_ns=SECOND_NS).warnings
    assert warning == (
        "the trace spans 40.9 days, 294 s between requests: its timestamps may be milliseconds, as "
        "Mooncake's are "
        "(--timed-trace-sec-multiplier 0.001)"
    )


def test_bailian_files_are_read_as_mooncakes_only_with_their_units(public_trace):
    path = public_trace("format-examples/qwen_bailian.handwritten.jsonl")
    with pytest.raises(WorkloadError) as caught:
        open_workload(path, "mooncake")
    assert str(caught.value) == (
        f"{path}:1: chat_id: a row of a Qwen-Bailian trace, which counts seconds and 16-token ids: "
        "read it with --format bailian"
    )
    workload = open_workload(path, hash_block_tokens=16, time_unit_ns=SECOND_NS)
    assert workload.format_name == "mooncake"
    assert [record.arrival_ns for record in list(workload)[1:3]] == [251_000_000, 31_114_000_000]


def test_other_key_names(write):
    path = write('{"t": 1.5, "in": 20, "out": 3, "ids": [4, 9]}')
    names = {
        "timestamp_key": "t",
        "input_length_key": "in",
        "output_length_key": "out",
        "hash_ids_key": "ids",
    }
    (record,) = open_workload(path, hash_block_tokens=16, time_unit_ns=SECOND_NS, **names)
    assert (record.arrival_ns, record.prompt_tokens, record.hash_ids) == (1_500_000_000, 20, [0, 1])
