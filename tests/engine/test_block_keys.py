"""Block keys: equal for equal prefixes, and for nothing else."""

import itertools
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.block_hashes import Image, LoraAdapter
from kvtwin.engine.block_keys import UNKNOWN_TOKEN, KeySpace, OpaqueContent, TokenContent
from kvtwin.engine.prefix_id_content import PrefixIdContent
from tests.parts import examples

SQL, CHAT = LoraAdapter("sql", "/loras/sql", 1), LoraAdapter("chat", "/loras/chat", 2)
identities = st.tuples(st.sampled_from([None, SQL, CHAT]), st.sampled_from([None, "x", "y"]))
few_tokens = st.lists(st.integers(0, 1), max_size=14)


def keys_of(content, num_blocks):
    keys = []
    content.extend_keys(keys, num_blocks)
    assert len(keys) == num_blocks
    return keys


def same_prefixes(first, second, named):
    """Number of leading equal keys; behind them none may be equal to any other."""
    equal = 0
    while equal < min(len(first), len(second)) and first[equal] == second[equal]:
        equal += 1
    everything = first + second[equal:]
    assert len(everything) == len(set(everything)), "a key means two things"
    assert all(key < 0 for key in first[named:])
    return equal


@examples(200)
@given(block_size=st.integers(1, 4), prompts=st.tuples(few_tokens, few_tokens), who=st.tuples(identities, identities))
def test_known_tokens(block_size, prompts, who):
    space = KeySpace(block_size)
    keys = [
        keys_of(TokenContent(space, tokens, *identity), len(tokens) // block_size)
        for tokens, identity in zip(prompts, who, strict=True)
    ]
    assert all(key > 0 and key % 2 for key in keys[0] + keys[1])
    expected = 0
    if who[0] == who[1]:
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*prompts, strict=False)))
        expected = shared // block_size
    assert same_prefixes(keys[0], keys[1], len(keys[0])) == expected


@examples(200)
@given(
    block_size=st.integers(1, 4),
    prompt=few_tokens,
    outputs=st.lists(st.sampled_from([0, 1, UNKNOWN_TOKEN]), max_size=14),
    steps=st.lists(st.integers(0, 5), max_size=30),
)
def test_keys_come_out_the_same_however_far_at_a_time(block_size, prompt, outputs, steps):
    """Tokens are appended one by one, and keys asked for now and then; a private key only repeats itself."""
    space = KeySpace(block_size)
    content, keys = TokenContent(space, prompt), []
    known = list(prompt)
    for token, ahead in itertools.zip_longest(outputs, steps[: len(outputs)], fillvalue=0):
        content.append((token,))
        known.append(token)
        content.extend_keys(keys, max(len(keys), len(known) // block_size - ahead))
    content.extend_keys(keys, len(known) // block_size)
    first_unknown = known.index(UNKNOWN_TOKEN) if UNKNOWN_TOKEN in known else len(known)
    named = first_unknown // block_size
    assert keys[:named] == keys_of(TokenContent(space, known), len(known) // block_size)[:named]
    assert all(key < 0 for key in keys[named:])
    assert len(set(keys)) == len(keys)
    assert content.token_ids(0, len(known)) == known


def prefix_id_content(space, num_tokens, prefix_ids, id_tokens, *identity, **settings):
    """Of ids that stand for equally many tokens each."""
    ends = range(id_tokens, id_tokens * len(prefix_ids) + id_tokens, id_tokens)
    return PrefixIdContent(space, num_tokens, prefix_ids, ends, *identity, **settings)


@examples(300)
@given(
    block_size=st.integers(1, 9),
    id_tokens=st.integers(1, 6),
    ids=st.tuples(*[st.lists(st.integers(0, 1), max_size=5)] * 2),
    missing=st.tuples(*[st.integers(-3, 8)] * 2),
    who=st.tuples(identities, identities),
    one_at_a_time=st.booleans(),
)
def test_prefix_ids(block_size, id_tokens, ids, missing, who, one_at_a_time):
    """A block is the same when all ids up to the one with its last token are; behind the ids it is private."""
    space = KeySpace(block_size)
    keys, named = [], []
    for prefix_ids, fewer, identity in zip(ids, missing, who, strict=True):
        num_tokens = max(0, len(prefix_ids) * id_tokens - fewer)
        content = prefix_id_content(space, num_tokens, prefix_ids, id_tokens, *identity)
        named.append(min(num_tokens, len(prefix_ids) * id_tokens) // block_size)
        own = []
        for count in range(num_tokens // block_size + 3) if one_at_a_time else [num_tokens // block_size + 2]:
            content.extend_keys(own, count)
        keys.append(own)
        assert all(key > 0 and key % 2 == 0 for key in own[: named[-1]])
        assert content.token_ids(0, 5) == []
    expected = 0
    if who[0] == who[1]:
        for index in range(min(named)):
            last_id = ((index + 1) * block_size - 1) // id_tokens
            if ids[0][: last_id + 1] != ids[1][: last_id + 1]:
                break
            expected += 1
    assert same_prefixes(keys[0], keys[1], named[0]) == expected


def test_an_empty_salt_is_none_for_tokens():
    space = KeySpace(4)
    assert keys_of(TokenContent(space, [1] * 8, None, ""), 2) == keys_of(TokenContent(space, [1] * 8), 2)


def test_an_empty_salt_is_none_for_prefix_ids():
    space = KeySpace(4)
    empty, none = (prefix_id_content(space, 8, [1, 2], 4, None, salt) for salt in ("", None))
    assert keys_of(empty, 2) == keys_of(none, 2)


def test_ids_of_different_stretches_are_different_prefixes():
    space = KeySpace(4)
    first = keys_of(prefix_id_content(space, 64, [1, 2], 32), 16)
    second = keys_of(prefix_id_content(space, 64, [1, 2, 3, 4], 16), 16)
    assert not set(first) & set(second)


@examples(200)
@given(
    block_size=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    num_outputs=st.integers(0, 20),
    num_new=st.integers(1, 20),
)
def test_a_later_turn_finds_the_output_under_the_last_id(block_size, lengths, num_outputs, num_new):
    """As if both turns were given token by token: the next prompt repeats prompt and output, and adds to them."""
    ends = list(accumulate(lengths))
    space = KeySpace(block_size)
    first_end, later_end = ends[-1] + num_outputs, ends[-1] + num_outputs + num_new
    first = keys_of(
        PrefixIdContent(space, first_end, [*range(len(ends)), 99], [*ends, first_end + 1]), first_end // block_size
    )
    later = keys_of(
        PrefixIdContent(space, later_end, [*range(len(ends)), 99], [*ends, later_end]), later_end // block_size
    )
    assert same_prefixes(first, later, len(first)) == first_end // block_size
    other = keys_of(
        PrefixIdContent(space, later_end, [*range(len(ends)), 98], [*ends, later_end]), later_end // block_size
    )
    assert same_prefixes(first, other, len(first)) == ends[-1] // block_size
    assert all(key > 0 for key in later)


def test_an_id_that_starts_elsewhere_is_another_prefix():
    """Behind the same id, but where that one is shorter."""
    space = KeySpace(4)
    first, second = (keys_of(PrefixIdContent(space, 16, [1, 2], [end, 16]), 4) for end in (4, 8))
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])


@pytest.mark.parametrize(("block_size", "blocks"), [(16, 32), (256, 2), (512, 1), (784, 0)])
def test_ids_that_differ_in_their_second(block_size, blocks):
    """D9's rows of 1024 tokens, [0, 1] and [0, 2]: 512 tokens are the same, but not with blocks of 784."""
    space = KeySpace(block_size)
    first, second = (
        keys_of(prefix_id_content(space, 1024, prefix_ids, 512), 1024 // block_size) for prefix_ids in ([0, 1], [0, 2])
    )
    assert same_prefixes(first, second, len(first)) == blocks


@examples(100)
@given(block_size=st.integers(1, 9), offsets=st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_images_in_a_prompt_of_prefix_ids(block_size, offsets):
    """Another image, or the same at another place, makes a difference from its first block on."""
    space = KeySpace(block_size)
    keys = [
        keys_of(
            prefix_id_content(space, 60, range(10), 6, images=[Image("cat", offset, 5)]),
            60 // block_size,
        )
        for offset in offsets
    ]
    expected = 60 // block_size if offsets[0] == offsets[1] else min(offsets) // block_size
    assert same_prefixes(keys[0], keys[1], 60 // block_size) == min(expected, 60 // block_size)


def test_nothing_known():
    space = KeySpace(4)
    first, second = (OpaqueContent(space) for _ in range(2))
    keys = keys_of(first, 5) + keys_of(second, 5)
    assert len(set(keys)) == 10
    assert all(key < 0 for key in keys)
    first.append((1, 2))
    assert first.token_ids(0, 9) == []
    assert first.extra_keys(0, 4) is None


def test_kinds_of_content_never_meet():
    space = KeySpace(2)
    contents = [TokenContent(space, [0] * 20), prefix_id_content(space, 20, [0] * 5, 4), OpaqueContent(space)]
    keys = [key for content in contents for key in keys_of(content, 10)]
    assert len(set(keys)) == 30
    assert [space.hash_of_key(key) is not None for key in keys] == [True] * 10 + [False] * 20


def test_hashes_are_chained_and_do_not_depend_on_when_they_are_asked_for():
    space, other = KeySpace(2), KeySpace(2)
    keys, same = (keys_of(TokenContent(one, range(20)), 10) for one in (space, other))
    backwards = [other.hash_of_key(key) for key in reversed(same)]
    parent = space.root_hash
    for index, key in enumerate(keys):
        parent = space.hash((parent, (2 * index, 2 * index + 1), None))
        assert space.hash_of_key(key) == parent == backwards[-1 - index]
