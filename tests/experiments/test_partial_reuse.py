"""What hits in whole blocks lose, and what parts of blocks would cost in copies."""

import json

from kvtwin.experiments.misses.partial_reuse import PartialReuse
from kvtwin.workloads.request_record import RequestRecord


def record(tokens, output=(), **more):
    return RequestRecord(
        request_id="r",
        arrival_ns=0,
        prompt_tokens=len(tokens),
        output_tokens=max(1, len(output)),
        token_ids=list(tokens),
        output_token_ids=list(output) or None,
        **more,
    )


def test_a_prompt_loses_what_lies_behind_its_last_whole_block():
    parts = PartialReuse()
    parts.admitted(record(range(20)), 0, 16, counts=True)
    parts.admitted(record([*range(20), 99, 98]), 16, 16, counts=True)
    assert parts.figures() == {"partial_reuse_tokens": 4, "partial_reuse_copies": 1}


def test_the_last_token_is_computed_in_any_case_and_an_output_counts_without_its_last():
    parts = PartialReuse()
    first = record(range(20), output=[50, 51, 52])
    parts.admitted(first, 0, 16, counts=True)
    parts.ended(first, 3)
    parts.admitted(record([*range(20), 50]), 16, 16, counts=True)
    assert parts.tokens == 4
    parts.admitted(record([*range(20), 50, 51, 52, 53]), 16, 16, counts=True)
    assert (parts.tokens, parts.copies) == (4 + 6, 2)


def test_whole_blocks_that_were_missed_and_warm_up_do_not_count():
    parts = PartialReuse()
    parts.admitted(record(range(40)), 0, 16, counts=True)
    parts.admitted(record(range(40)), 0, 16, counts=True)  # all of it was evicted
    parts.admitted(record(range(40)), 32, 16, counts=False)
    assert parts.figures() == {"partial_reuse_tokens": 0, "partial_reuse_copies": 0}


def test_nothing_is_known_of_prompts_with_salts_or_without_tokens():
    parts = PartialReuse()
    parts.admitted(record(range(20), cache_salt="s"), 0, 16, counts=True)
    hashed = RequestRecord(
        request_id="h", arrival_ns=0, prompt_tokens=20, output_tokens=1, hash_ids=[1], hash_block_tokens=512
    )
    parts.admitted(hashed, 0, 16, counts=True)
    assert parts.figures() == {"partial_reuse_tokens": None, "partial_reuse_copies": None}


def test_a_replay_has_a_line_where_it_is_more_than_a_hundredth(kvtwin, tmp_path):
    trace = tmp_path / "trace.jsonl"
    rows = [{"prompt": [*range(60), 100 + n, 200 + n], "max_tokens": 1} for n in range(10)]
    trace.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ("replay", str(trace), "--block-size", "32", "--request-rate", "1")
    line = "Parts of blocks would hit besides:       252 (40.65%), 9 block copies\n"
    assert line in kvtwin(*words).out
    assert "Parts of blocks" not in kvtwin(*words, "--block-size", "60").out
