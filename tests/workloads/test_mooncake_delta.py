import json

import pytest

from kvtwin.workloads import WorkloadError, open_workload
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache


def row(session="s", **fields):
    values = {"session_id": session, "input_length": 16, "output_length": 4, "hash_ids": [1]} | fields
    return json.dumps({key: value for key, value in values.items() if value is not ...})


def first(session="s", timestamp=0, **fields):
    return row(session, timestamp=timestamp, **fields)


def later(session="s", delay=5, **fields):
    return row(session, delay=delay, **fields)


def test_a_prompt_is_the_prompt_before_its_output_and_the_new_tokens(write):
    """The turns of ai-dynamo/dynamo PR 11060."""
    ids = list(range(9))
    path = write(first(input_length=4190, output_length=592, hash_ids=ids), later(input_length=592, hash_ids=[50, 51]))
    one, two = open_workload(path)
    assert (one.prompt_tokens, two.prompt_tokens) == (4190, 5374)
    ends = [*range(512, 4097, 512), 4190]
    assert one.hash_id_ends == [*ends, 4190 + 592]
    assert two.hash_id_ends == [*ends, 5374 + 4]
    assert one.hash_ids == two.hash_ids
    assert (one.session, one.think_time_ns, two.think_time_ns) == ("s", None, 5_000_000)


def test_only_first_prompts_share_ids_between_sessions(write):
    path = write(
        first("a", input_length=600, hash_ids=[1, 2]),
        later("a", input_length=600, hash_ids=[3, 4]),
        first("b", input_length=600, hash_ids=[1, 5]),
        later("b", input_length=600, hash_ids=[3, 4]),
    )
    a0, b0, a1, b1 = open_workload(path)
    assert [record.session for record in (a0, b0, a1, b1)] == ["a", "b", "a", "b"]
    assert a0.hash_ids[0] == b0.hash_ids[0]
    assert not set(a1.hash_ids[1:]) & set(b1.hash_ids[1:])
    cache = InfiniteCache()
    # The second session has the first id's 512 tokens; later turns have all that came before, but for the output's end.
    assert [cache.add(prefix_chain(record, 8)) * 8 for record in (a0, b0, a1, b1)] == [0, 512, 600, 600]


def test_when_turns_come(write):
    """``delay`` counts from the answer before; without it the difference of the timestamps does."""
    path = write(
        first(timestamp=7),
        row(timestamp=1000, delay=5),
        row(timestamp=1500),
        later(delay=2.5),
        first("t", timestamp=8),
        json.dumps({"timestamp": 9, "input_length": 3, "output_length": 1}),
    )
    records = {record.source.rsplit(":")[-1]: record for record in open_workload(path, "mooncake-delta")}
    assert [records[line].think_time_ns for line in "123456"] == [None, 5_000_000, 500_000_000, 2_500_000, None, None]
    assert [records[line].arrival_ns / 10**6 for line in "123456"] == [7, 12, 512, 514.5, 8, 9]
    lone = records["6"]
    assert (lone.session, lone.knows_prefix, lone.hash_id_ends) == (None, False, None)


def test_a_session_without_ids_still_repeats_itself(write):
    one, two = open_workload(write(first(hash_ids=...), later(hash_ids=...)))
    assert (one.hash_ids, two.hash_ids) == ([0], [0])
    assert (one.hash_id_ends, two.hash_id_ends) == ([20], [40])


def test_an_empty_output_names_nothing(write):
    one, two = open_workload(write(first(output_length=0), later()))
    assert (one.hash_id_ends, two.hash_id_ends) == ([16], [16, 36])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (later("t"), "delay: expected none in the first row of a session"),
        (row("t"), "timestamp: expected this key, but it is missing"),
        (row(), "delay: expected it or timestamp in a later row of a session, found neither"),
        (later(delay=-1), "delay: expected a time of 0 or more ms, got -1"),
        (later(input_length=0), "input_length: expected an integer of at least 1, got 0"),
        (later(hash_ids=[1, 2]), "hash_ids: expected ceil(16/512) = 1 ids, got 2"),
        (later(output_length=...), "output_length: expected this key, but it is missing"),
        (later(session=5), "session_id: expected a string, got 5"),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(first(), later(), bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:3: {message}"


def test_a_public_file(public_trace):
    """Sessions one after another. Of 6,469 ids of first prompts 4,385 were seen in first prompts before (0.678)."""
    sessions = {}
    for record in open_workload(public_trace("aiperf/agentic_code_60s_seed42.jsonl")):
        sessions.setdefault(record.session, []).append(record)
    assert (len(sessions), sum(map(len, sessions.values()))) == (63, 783)
    cache = InfiniteCache()
    first_hits = 0
    for first_turn, *later_turns in sessions.values():
        first_hits += cache.add(prefix_chain(first_turn, 512))
        before = first_turn
        for record in later_turns:  # all of the turn before, but for the last token of its output
            assert cache.add(prefix_chain(record, 512)) == (before.prompt_tokens + before.output_tokens - 1) // 512
            before = record
    assert first_hits == 4_385
