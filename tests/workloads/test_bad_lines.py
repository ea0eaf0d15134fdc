"""Bad lines: refused, or left out and told."""

import gzip
import json

import pytest

from kvtwin.workloads import FORMATS, WorkloadError, open_workload

COLUMNS = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
GOOD = '{"timestamp": %d, "input_length": 5, "output_length": 4}'


def rows(*numbers):
    return [GOOD % number for number in numbers]


def test_bad_lines_are_left_out_counted_and_named(write):
    path = write(
        GOOD % 0, '{"timestamp": 1', '{"timestamp": 2, "input_length": 0, "output_length": 4}', "[1]", GOOD % 3
    )
    with pytest.raises(WorkloadError, match=":2: malformed JSON"):
        open_workload(path)
    workload = open_workload(path, skip_bad_lines=True)
    assert [record.source for record in workload] == [f"{path}:1", f"{path}:5"]
    assert [record.source for record in workload] == [f"{path}:1", f"{path}:5"]
    (warning,) = workload.warnings
    assert warning == (
        f"left out 3 bad lines: {path}:2: malformed JSON: Expecting ',' delimiter; "
        f"{path}:3: input_length: expected an integer of at least 1, got 0; {path}:4: expected a JSON object, got [1]"
    )


def test_the_first_ten_are_shown(write):
    workload = open_workload(write(GOOD % 0, *["{"] * 25), skip_bad_lines=True)
    (warning,) = workload.warnings
    assert warning.startswith("left out 25 bad lines (the first 10): ")
    assert warning.count("malformed JSON") == 10


def test_a_bad_first_line(write):
    path = write('{"timestamp": 0, "inp', *rows(1, 2))
    assert [record.arrival_ns for record in open_workload(path, skip_bad_lines=True)] == [10**6, 2 * 10**6]


def test_a_file_of_bad_lines_is_refused_with_all_that_is_wrong(write):
    with pytest.raises(WorkloadError, match=r"found none; left out 2 bad lines: .*:1: .*:2: "):
        open_workload(write(GOOD.replace("5", "0") % 1, GOOD.replace("5", "-1") % 2), "mooncake", skip_bad_lines=True)


@pytest.mark.parametrize("number", [1, 3, 2000])
@pytest.mark.parametrize("kind", ["lines", "columns", "array"])
def test_a_byte_that_is_no_text_makes_one_bad_line(tmp_path, kind, number):
    """Wherever it is: in what the first look at a file sees, or behind it."""
    first, between, last = {"lines": ("", "\n", ""), "array": ("[\n", ",\n", "]"), "columns": (COLUMNS, "\n", "")}[kind]
    form = "%d,who,5,4,9,b" if kind == "columns" else GOOD.replace("{", '{"by": "who", ')
    rows = [(form % index).replace("who", "\xe9" if index == number else "who") for index in range(2500)]
    path = tmp_path / "trace"
    path.write_bytes((first + between.join(rows) + "\n" + last).encode("latin-1"))
    line = number + (1 if kind == "lines" else 2)
    with pytest.raises(WorkloadError, match=rf"trace:{line}: expected UTF-8 text"):
        open_workload(path)
    workload = open_workload(path, skip_bad_lines=True)
    assert len(list(workload)) == 2499
    assert f"left out 1 bad line: {path}:{line}: expected UTF-8 text" in workload.warnings[0]


@pytest.mark.parametrize("cut", [10, 60, 200])
def test_a_truncated_archive_gives_what_can_be_read_only_when_asked(tmp_path, cut):
    path = tmp_path / "trace.gz"
    lines = [json.dumps({"timestamp": i, "input_length": 5 + i * 7 % 90, "output_length": 4}) for i in range(5000)]
    content = gzip.compress("\n".join(lines).encode(), mtime=0)
    path.write_bytes(content[:-cut])
    with pytest.raises(WorkloadError, match="the compressed data ends early"):
        open_workload(path)
    workload = open_workload(path, skip_bad_lines=True)
    assert 4000 < len(workload) <= 5000
    assert len(list(workload)) == len(workload)
    ends = f"{path}: the compressed data ends early: read {len(workload):,} rows before that, and nothing behind it"
    assert workload.warnings == (ends,)
    assert "the compressed data ends early" in workload.warnings[0]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", gzip.compress(b"", mtime=0)[:-8]], ids=["bytes", "half an archive"]
)
def test_what_is_no_trace_at_all_is_refused_in_any_case(tmp_path, content):
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(WorkloadError):
        open_workload(path, skip_bad_lines=True)
    with pytest.raises(WorkloadError, match="No such file"):
        open_workload(tmp_path / "absent", skip_bad_lines=True)


def test_a_session_is_left_out_whole(write):
    """Its row is bad when one of its turns is."""
    turn = {"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2]}
    bad = turn | {"hash_ids": [1, 2, 3]}
    sessions = [
        {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": [turn, last]}
        for name, last in (("a", turn), ("b", bad), ("c", turn))
    ]
    path = write(*map(json.dumps, sessions))
    with pytest.raises(WorkloadError, match=r":2: requests\[1\]: hash_ids: expected floor"):
        open_workload(path)
    workload = open_workload(path, skip_bad_lines=True)
    assert [record.session for record in workload] == ["a", "a", "c", "c"]


def test_a_turn_that_waits_for_a_bad_line_is_bad_too(write):
    row = {"id": "a", "arrival_ns": 0, "prompt_tokens": 5, "output_tokens": 1, "session": "s"}
    later = row | {"id": "b", "after": [{"id": "a", "delay_ns": 0, "dispatched": False}], "arrival_ns": 5}
    last = row | {"id": "c", "session": "t"}
    path = write('{"kvtwin_workload": 1}', *map(json.dumps, (row | {"prompt_tokens": 0}, later, last)))
    workload = open_workload(path, skip_bad_lines=True)
    assert [record.request_id for record in workload] == ["c"]
    assert [record.request_id for record in workload] == ["c"]
    assert "left out 2 bad lines" in workload.warnings[0]


def test_one_id_too_many_is_left_out(public_trace):
    workload = open_workload(public_trace("aiperf/production_trace.jsonl"), skip_bad_lines=True)
    assert len(workload) == 9
    assert ":3: hash_ids: expected ceil(1024/512) = 2 ids, got 3" in workload.warnings[0]


def test_every_format_can_leave_out_bad_lines():
    assert all(reader(skip_bad_lines=True).skip_bad_lines for reader in FORMATS.values())
