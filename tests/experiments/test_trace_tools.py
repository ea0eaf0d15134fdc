"""``kvtwin trace convert``, ``sample`` and ``merge``: what they keep, and what they say they lose."""

import json

from kvtwin.workloads import open_workload


def row(timestamp, ids, **more):
    return {"timestamp": timestamp, "input_length": 512 * len(ids), "output_length": 3, "hash_ids": ids} | more


def facts(path):
    return [
        (each.request_id, each.arrival_ns // 10**6, each.session, list(each.hash_ids or ()))
        for each in open_workload(path)
    ]


def test_convert_keeps_everything_or_says_what_is_lost(kvtwin, write, tmp_path):
    path = write(row(0, [7, 8], session_id="a"), row(5, [7, 9], session_id="a", priority=2))
    outcome = kvtwin("trace", "convert", path, tmp_path / "whole.jsonl.gz")
    assert (outcome.code, outcome.err) == (0, "")
    assert "2 requests" in outcome.out
    assert facts(tmp_path / "whole.jsonl.gz") == facts(path) == [("0", 0, "a", [0, 1]), ("1", 5, "a", [0, 2])]
    assert [each.priority for each in open_workload(tmp_path / "whole.jsonl.gz")] == [0, 2]
    outcome = kvtwin("trace", "convert", path, tmp_path / "plain.jsonl", "--to", "mooncake")
    assert "Mooncake's format does not hold priorities" in outcome.err
    rows = [json.loads(line) for line in (tmp_path / "plain.jsonl").read_text().splitlines()]
    assert [each["hash_ids"] for each in rows] == [[0, 1], [0, 2]]
    outcome = kvtwin("trace", "convert", path, tmp_path / "plain.jsonl")
    assert (outcome.code, "already exists" in outcome.err) == (2, True)


def test_merge_tells_requests_sessions_and_ids_of_traces_apart(kvtwin, write, tmp_path):
    one = write(row(0, [1, 2], session_id="a"), row(9, [1, 3]), name="one.jsonl")
    other = write(row(4, [1], session_id="a"), name="other.jsonl")
    outcome = kvtwin("trace", "merge", one, other, "--out", tmp_path / "both.jsonl")
    assert (outcome.code, "3 requests" in outcome.out) == (0, True)
    assert facts(tmp_path / "both.jsonl") == [
        ("0/0", 0, "0/a", [0, 1]),
        ("1/0", 4, "1/a", [2]),
        ("0/1", 9, None, [0, 3]),
    ]
    outcome = kvtwin("trace", "merge", one, "--out", tmp_path / "one-alone.jsonl")
    assert (outcome.code, "at least two" in outcome.err) == (2, True)


def test_sample_keeps_whole_sessions_and_the_seed_says_which(kvtwin, write, tmp_path):
    path = write(*(row(10 * index, [index], session_id=f"s{index % 5}") for index in range(20)))
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        outcome = kvtwin("trace", "sample", path, tmp_path / f"{name}.jsonl", "--num-sessions", 2, "--seed", seed)
        assert (outcome.code, "8 requests" in outcome.out) == (0, True)
    one, same, other = (facts(tmp_path / f"{name}.jsonl") for name in ("one", "same", "other"))
    assert one == same != other
    assert {each[2] for each in one} < {f"s{index}" for index in range(5)}
    assert [each for each in facts(path) if each[2] in {kept[2] for kept in one}] == one
