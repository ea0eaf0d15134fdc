import gzip
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtwin.workloads import ImageSpan, Predecessor, RequestRecord, WorkloadError, open_workload, write_workload

HEADER = '{"kvtwin_workload": 1}'
times = st.integers(0, 2**63 - 1)
numbers = st.integers(-(2**63) + 1, 2**63 - 1)


@st.composite
def records(draw):
    prompt_tokens, output_tokens = draw(st.integers(1, 40)), draw(st.integers(0, 10))
    token_ids = st.integers(0, 2**40)
    known_by = draw(st.sampled_from(["tokens", "hash_ids", "stretches", "length"]))
    hash_block_tokens = draw(st.integers(1, 20))
    num_ids = -(-prompt_tokens // hash_block_tokens)
    ends = sorted(draw(st.sets(st.integers(1, prompt_tokens + output_tokens))))
    hash_ids = {
        "hash_ids": draw(st.lists(numbers, max_size=num_ids)),
        "stretches": draw(st.lists(numbers, min_size=len(ends), max_size=len(ends))),
    }
    offset = draw(st.integers(0, prompt_tokens - 1))
    length = draw(st.integers(1, prompt_tokens - offset))
    text = tuple(sorted(draw(st.sets(st.integers(0, length - 1)))))
    image = ImageSpan(draw(st.text()), offset, length, text)
    session = draw(st.none() | st.text())
    return RequestRecord(
        request_id=draw(st.text()),
        arrival_ns=draw(times),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        token_ids=draw(st.lists(token_ids, min_size=prompt_tokens, max_size=prompt_tokens))
        if known_by == "tokens"
        else None,
        hash_ids=hash_ids.get(known_by),
        hash_block_tokens=hash_block_tokens if known_by == "hash_ids" else None,
        hash_id_ends=ends if known_by == "stretches" else None,
        output_token_ids=draw(st.none() | st.lists(token_ids, min_size=output_tokens, max_size=output_tokens)),
        n=draw(st.sampled_from([1, 1, 2, 16_384])),
        priority=draw(numbers),
        cache_salt=draw(st.none() | st.text()),
        lora_name=draw(st.none() | st.text()),
        images=draw(st.sampled_from([(), (image,)])),
        session=session,
        think_time_ns=None if session is None else draw(st.none() | times),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.sampled_from(["w.jsonl", "w.jsonl.gz"]))
def test_what_is_written_is_read(tmp_path, written, name):
    path = tmp_path / name
    assert write_workload(path, written, description="a test") == len(written)
    read = [replace(record, source="") for record in open_workload(path)]
    assert read == sorted(written, key=lambda record: record.arrival_ns)
    assert [file.name for file in tmp_path.iterdir() if "partial" in file.name] == []


def test_predecessors_are_written_and_read(tmp_path):
    def turn(name, arrival_ns, *after):
        return RequestRecord(
            request_id=name, arrival_ns=arrival_ns, prompt_tokens=1, output_tokens=1, session=name, after=after
        )

    early, late = (Predecessor(request_id="a", delay_ns=5, dispatched=dispatched) for dispatched in (True, False))
    written = [turn("a", 1), turn("b", 1, early, late), turn("c", 7, late)]
    write_workload(tmp_path / "w.jsonl", written)
    assert [replace(record, source="") for record in open_workload(tmp_path / "w.jsonl")] == written


def test_gz_is_compressed(tmp_path):
    record = RequestRecord(request_id="a", arrival_ns=0, prompt_tokens=1, output_tokens=1)
    write_workload(tmp_path / "w.gz", [record])
    assert gzip.decompress((tmp_path / "w.gz").read_bytes()).startswith(b'{"kvtwin_workload":1}\n')


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "w.jsonl"
    path.write_text("old")
    bad = RequestRecord(request_id="a", arrival_ns=0, prompt_tokens=2, output_tokens=1, token_ids=[1])
    with pytest.raises(WorkloadError) as caught:
        write_workload(path, [bad])
    assert str(caught.value) == "record 1: token_ids: expected 2 ids, got 1"
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def good(rest: str = "") -> str:
    return '{"id": "a", "arrival_ns": 1, "prompt_tokens": 3, "output_tokens": 1' + rest + "}"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            good(', "colour": 1'),
            "'colour': unknown key, expected one of id, arrival_ns, prompt_tokens, token_ids, hash_ids, "
            "hash_block_tokens, hash_id_ends, output_tokens, output_token_ids, accepted_drafts, n, "
            "priority, cache_salt, lora, images, session, "
            "think_time_ns, after, data_parallel_rank",
        ),
        (good(', "token_ids": [1, 2]'), "token_ids: expected 3 ids, got 2"),
        (
            good(', "token_ids": [1, 2, 3], "hash_ids": [], "hash_block_tokens": 2'),
            "hash_ids: expected token_ids or hash_ids, got both",
        ),
        (
            good(', "hash_ids": [1, 2, 3], "hash_block_tokens": 2'),
            "hash_ids: expected at most ceil(3/2) = 2 ids, got 3",
        ),
        (good(', "hash_ids": [1]'), "hash_block_tokens: expected this key, but it is missing"),
        (
            good(', "hash_block_tokens": 2'),
            "hash_block_tokens: expected hash_ids beside it, but they are missing",
        ),
        (
            good(', "hash_id_ends": [2]'),
            "hash_id_ends: expected hash_ids beside it, but they are missing",
        ),
        (
            good(', "hash_ids": [1], "hash_id_ends": [2], "hash_block_tokens": 2'),
            "hash_id_ends: expected hash_block_tokens or hash_id_ends, got both",
        ),
        (
            good(', "hash_ids": [1], "hash_id_ends": [1, 2]'),
            "hash_id_ends: expected one for each of 1 ids, got 2",
        ),
        (
            good(', "hash_ids": [1, 2], "hash_id_ends": [2, 2]'),
            "hash_id_ends: expected ascending ends up to prompt and output, 4, got [2, 2]",
        ),
        (
            good(', "hash_ids": [1], "hash_id_ends": [5]'),
            "hash_id_ends: expected ascending ends up to prompt and output, 4, got [5]",
        ),
        (good(', "output_token_ids": []'), "output_token_ids: expected 1 ids, got 0"),
        (good(', "think_time_ns": 5'), "think_time_ns: expected a session beside it, but it is missing"),
        (good(', "session": 5'), "session: expected a string, got 5"),
        (good(', "images": 5'), "images: expected a list of objects, got 5"),
        (good(', "images": [5]'), "images[0]: expected an object, got 5"),
        (good(', "after": [{"id": "x"}]'), "after[0]: delay_ns: expected this key, but it is missing"),
        (
            good(', "after": [{"id": "x", "delay_ns": 1, "dispatched": 0}]'),
            "after[0]: dispatched: expected true or false, got 0",
        ),
        (
            good(', "after": [{"id": "a", "delay_ns": 1, "dispatched": false}]'),
            "after: expected a turn that arrives earlier, got 'a'",
        ),
        (
            good(', "images": [{"hash": "h", "offset_tokens": 2, "length_tokens": 2}]'),
            "images[0]: length_tokens: expected an end within 3 prompt tokens, got 4",
        ),
        (
            good(', "images": [{"hash": "h", "offset_tokens": 2, "x": 2}]'),
            "images[0]: 'x': unknown key, expected one of hash, offset_tokens, length_tokens, text_positions",
        ),
        (
            good(
                ', "images": [{"hash": "h", "offset_tokens": 0, "length_tokens": 2}, '
                '{"hash": "h", "offset_tokens": 1, "length_tokens": 2}]'
            ),
            "images[1]: offset_tokens: expected at least 2, behind the image before, got 1",
        ),
        *(
            (
                good(
                    f', "images": [{{"hash": "h", "offset_tokens": 0, "length_tokens": 2, "text_positions": {text}}}]'
                ),
                f"images[0]: text_positions: expected ascending positions from 0 to 1, got {text}",
            )
            for text in ("[1, 1]", "[2]", "[-1]")
        ),
        ('{"arrival_ns": 1}', "id: expected this key, but it is missing"),
    ],
)
def test_bad_rows(write, bad, message):
    path = write(HEADER, good(), bad)
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:3: {message}"


def test_another_version_is_refused(write):
    path = write('{"kvtwin_workload": 2, "new": 1}')
    with pytest.raises(WorkloadError) as caught:
        open_workload(path)
    assert str(caught.value) == f"{path}:1: kvtwin_workload: expected version 1, got 2"
