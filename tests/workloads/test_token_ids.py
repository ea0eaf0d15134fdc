"""Token ids for every prompt, and shorter prompts: both must keep what is shared, no less and no more."""

from dataclasses import replace
from fractions import Fraction
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.block_keys import KeySpace, TokenContent
from kvtwin.engine.prefix_id_content import PrefixIdContent
from kvtwin.workloads import RequestRecord
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.length_scale import scale_lengths
from kvtwin.workloads.mixing import fold, fold_arrays
from kvtwin.workloads.request_record import ImageSpan, Predecessor
from kvtwin.workloads.token_ids import with_token_ids

HUGE = 2**62
"""A vocabulary in which no two tokens are equal by chance."""
SCALES = (1, 0.75, 0.5, 1 / 3, 0.1, 0.03)


def record(prompt_tokens, output_tokens=5, **changes):
    fields = {"request_id": "r", "arrival_ns": 0, "source": "file:1"}
    return RequestRecord(**fields | {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens} | changes)


@st.composite
def records_of_one_kind(draw):
    """Prompts of few different ids, so that many of them begin alike."""
    kind = draw(st.sampled_from(["tokens", "equal stretches", "any stretches", "length only"]))
    block_tokens = draw(st.integers(1, 40))
    found = []
    for index in range(draw(st.integers(2, 5))):
        output_tokens = draw(st.integers(0, 60))
        if kind == "tokens":
            ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=60))
            found.append(record(len(ids), output_tokens, token_ids=ids))
        elif kind == "equal stretches":
            ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
            prompt_tokens = block_tokens * (len(ids) - 1) + draw(st.integers(1, 2 * block_tokens))
            found.append(record(prompt_tokens, output_tokens, hash_ids=ids, hash_block_tokens=block_tokens))
        elif kind == "any stretches":
            lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
            ends = [sum(lengths[: count + 1]) for count in range(len(lengths))]
            ids = draw(st.lists(st.integers(0, 1), min_size=len(ends), max_size=len(ends)))
            beyond = draw(st.integers(0, min(output_tokens, ends[-1] - 1)))
            prompt_tokens = ends[-1] - beyond + draw(st.integers(0, 10)) * (beyond == 0)
            found.append(record(prompt_tokens, output_tokens, hash_ids=ids, hash_id_ends=ends))
        else:
            found.append(record(draw(st.integers(1, 60)), output_tokens))
        found[-1].request_id = str(index)
    return found


def num_shared_tokens(one, two):
    """How many leading tokens two prompts are known to share, from what their records say."""
    if one.token_ids is not None:
        return sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one.token_ids, two.token_ids, strict=False))
        )
    if one.hash_ids is None:
        return 0
    most = min(one.num_named_tokens, two.num_named_tokens, one.prompt_tokens, two.prompt_tokens)
    shared = 0
    for first, second in zip(
        zip(one.hash_ids, one.id_ends, strict=True), zip(two.hash_ids, two.id_ends, strict=True), strict=False
    ):
        if first[0] != second[0]:
            break
        shared = min(first[1], second[1])
        if first[1] != second[1]:
            break
    return min(shared, most)


def num_equal(one, two):
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False)))


@given(records_of_one_kind(), st.integers(0, 5))
def test_equal_prefixes_and_only_they_get_equal_tokens(records, seed):
    made = list(with_token_ids(records, HUGE, seed))
    for old, new in zip(records, made, strict=True):
        assert len(new.token_ids) == old.prompt_tokens
        assert replace(new, token_ids=None) == replace(
            old, token_ids=None, hash_ids=None, hash_block_tokens=None, hash_id_ends=None
        )
    for i, one in enumerate(made):
        for j, two in enumerate(made[:i]):
            assert num_equal(one.token_ids, two.token_ids) == num_shared_tokens(records[i], records[j])
    assert made == list(with_token_ids(records, HUGE, seed))


@given(records_of_one_kind(), st.sampled_from(SCALES))
def test_at_scale_prompts_share_what_they_should(records, scale):
    factor = Fraction(str(scale))
    scaled = list(scale_lengths(records, scale))
    made = list(with_token_ids(scaled, HUGE))
    for i, one in enumerate(made):
        old = records[i]
        assert one.prompt_tokens == max(1, int(old.prompt_tokens * factor))
        assert abs(one.output_tokens - old.output_tokens * scale) < 2  # 1, and 1 that a vanishing prompt takes
        assert (one.output_tokens == 0) == (old.output_tokens == 0)
        for j, two in enumerate(made[:i]):
            assert num_equal(one.token_ids, two.token_ids) == int(num_shared_tokens(old, records[j]) * factor)


@given(records_of_one_kind(), st.sampled_from(SCALES))
def test_a_scaled_record_is_a_record(records, scale):
    for one in scale_lengths(records, scale):
        if one.hash_ids is not None:
            ends = one.hash_id_ends
            assert len(ends) == len(one.hash_ids)
            assert list(ends) == sorted(set(ends))
            assert all(0 < end <= one.prompt_tokens + one.output_tokens for end in ends)


@given(records_of_one_kind(), st.integers(1, 24))
def test_blocks_are_shared_as_the_engine_takes_hash_ids(records, block_size):
    """Whatever a replay of the hash ids would hit is what a run of the token ids hits."""
    space = KeySpace(block_size)
    made = with_token_ids(records, HUGE)
    by_ids, by_tokens = [], []
    for old, new in zip(records, made, strict=True):
        if old.hash_ids is None:
            continue
        num_blocks = old.prompt_tokens // block_size
        named = min(old.num_named_tokens, old.prompt_tokens)
        for keys, content in (
            (by_ids, PrefixIdContent(space, named, old.hash_ids, old.id_ends)),
            (by_tokens, TokenContent(space, new.token_ids)),
        ):
            keys.append([])
            content.extend_keys(keys[-1], num_blocks)
    for i in range(len(by_ids)):
        for j in range(i):
            assert num_equal(by_ids[i], by_ids[j]) == num_equal(by_tokens[i], by_tokens[j])


def test_tokens_are_of_the_vocabulary_and_spread_over_it():
    (made,) = with_token_ids([record(20_000, hash_ids=[7, 8], hash_block_tokens=8_000)], 10)
    counts = [list(made.token_ids).count(token) for token in range(10)]
    assert sum(counts) == 20_000
    assert min(counts) > 1_800


def test_the_seed_decides_but_not_over_given_tokens():
    rows = [record(30, hash_ids=[1], hash_block_tokens=20), record(3, token_ids=[5, 6, 7])]
    (one, kept), (two, _) = (list(with_token_ids(rows, 1000, seed)) for seed in (0, 1))
    assert num_equal(one.token_ids, two.token_ids) == 0
    assert kept.token_ids == [5, 6, 7]


def test_ids_of_a_larger_vocabulary_are_folded_where_asked_for():
    rows = [record(3, token_ids=[5, 1005, 999]), record(3, token_ids=[5, 6, 7])]
    folded, kept = with_token_ids(rows, 1000, folds=True)
    assert list(folded.token_ids) == [5, 5, 999]
    assert kept.token_ids == [5, 6, 7]


def test_what_tells_equal_tokens_apart_is_kept():
    names = {"cache_salt": "s", "lora_name": "l", "session": "c", "think_time_ns": 3, "n": 2, "priority": 1}
    row = record(9, hash_ids=[1], hash_block_tokens=4, after=(Predecessor(request_id="q", delay_ns=1),), **names)
    for made in (*with_token_ids([row], 100), *scale_lengths([row], 0.5)):
        assert {name: getattr(made, name) for name in names} == names
        assert made.after == row.after


def test_bad_records_are_named():
    with pytest.raises(WorkloadError, match=r"file:1: token_ids: expected ids below 7, the model's vocabulary, got 7"):
        list(with_token_ids([record(2, token_ids=[6, 7])], 7))
    image = record(9, token_ids=[1] * 9, images=(ImageSpan("h", 0, 4),))
    for change in (lambda rows: with_token_ids(rows, 100), lambda rows: scale_lengths(rows, 0.5)):
        with pytest.raises(WorkloadError, match="file:1: images: expected text only"):
            list(change([image]))


@pytest.mark.parametrize("scale", [0, -1, 1.5, float("nan"), float("inf")])
def test_impossible_scales(scale):
    with pytest.raises(ValueError, match="length scale: expected a number above 0 and at most 1, got"):
        scale_lengths([], scale)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_arrays_fold_as_numbers_do(state, value):
    import numpy as np

    assert int(fold_arrays(np.array([state], np.uint64), np.array([value], np.uint64))[0]) == fold(state, value)


def test_folding_tells_orders_signs_and_sizes_apart():
    values = [fold(a, b) for a in (0, 1, 2) for b in (-1, 0, 1, 2, 3)]
    assert len(set(values)) == len(values)
