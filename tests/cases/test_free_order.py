"""D2, S2, S3, S4: which freed block is reused first, and what stays hit-able until then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.engine_harness import Engine, blocks
from tests.parts import examples


def test_the_tail_of_a_chain_goes_first():
    """llm-d-inference-sim#704: the head went first in 144 of 200 runs."""
    engine = Engine(3)
    a = engine.fresh(48)
    engine.serve(a)
    assert engine.free_order() == [3, 2, 1]
    engine.add("b", 16)
    assert engine.iterate().admitted[0].block_tables == [[3]]
    assert engine.cached_prefix([*a, 0]) == 32


@examples(80)
@given(block_size=st.integers(1, 9), num_blocks=st.integers(1, 20), data=st.data())
def test_a_chain_of_any_length_is_eaten_from_its_tail(block_size, num_blocks, data):
    engine = Engine(num_blocks, block_size=block_size)
    chain = engine.fresh(num_blocks * block_size)
    engine.serve(chain)
    left = num_blocks
    assert engine.free_order() == list(range(num_blocks, 0, -1))
    while left:
        taken = data.draw(st.integers(1, left), label="blocks taken")
        name = f"eater{left}"
        # Its blocks are full, hence cached: they go behind what is left of the chain.
        engine.add(name, taken * block_size)
        engine.run()
        left -= taken
        assert engine.cached_prefix([*chain, 0]) == left * block_size
        assert engine.free_order()[:left] == list(range(left, 0, -1))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_recycled_block_answers_to_its_new_prefix_only(block_size):
    """S2, kvcached#362."""
    engine = Engine(2, block_size=block_size)
    old, new = engine.fresh(2 * block_size), engine.fresh(2 * block_size)
    engine.serve(old)
    old_keys = [engine.pool.keys[block] for block in (1, 2)]
    engine.serve(new)
    new_keys = [engine.pool.keys[block] for block in (2, 1)]
    assert engine.cached_prefix([*old, 0]) == 0
    assert engine.cached_prefix([*new, 0]) == 2 * block_size
    assert not set(old_keys) & set(new_keys)
    assert [engine.pool.blocks_with_key(key) for key in old_keys + new_keys] == [[], [], [2], [1]]
    assert engine.pool.num_evictions == 2


def test_a_hit_makes_a_prefix_recent_again():
    """S3."""
    engine = Engine(5)
    a, b, c = (engine.fresh(33) for _ in range(3))
    assert [engine.serve(prompt) for prompt in (a, b, a, c)] == [0, 0, 32, 0]
    assert [engine.cached_prefix(prompt) for prompt in (a, b, c)] == [32, 0, 32]


@examples(60)
@given(data=st.data(), num_prompts=st.integers(2, 6))
def test_the_least_recently_used_prefix_goes_first(data, num_prompts):
    """Prompts of one full block and one token, in a pool that holds them all: the oldest use is evicted."""
    engine = Engine(num_prompts + 1, block_size=4)
    prompts = [engine.fresh(5) for _ in range(num_prompts)]
    for prompt in prompts:
        engine.serve(prompt)
    recency = list(range(num_prompts))
    for used in data.draw(st.lists(st.integers(0, num_prompts - 1), max_size=10), label="used again"):
        assert engine.serve(prompts[used]) == 4
        recency.remove(used)
        recency.append(used)
    for evicted in range(num_prompts):
        engine.serve(engine.fresh(5))
        hit = [index for index in range(num_prompts) if engine.cached_prefix(prompts[index])]
        assert hit == sorted(recency[evicted + 1 :])


def test_blocks_without_a_key_are_reused_before_anything_cached():
    """S4."""
    engine = Engine(6)
    engine.serve(40)
    assert engine.free_order() == [3, 4, 5, 6, 2, 1]


@examples(80)
@given(block_size=st.integers(2, 9), length=st.integers(1, 60), spare=st.integers(0, 5))
def test_free_order_after_one_prompt(block_size, length, spare):
    used, full = blocks(length, block_size), length // block_size
    engine = Engine(used + spare, block_size=block_size)
    engine.serve(length)
    partly_filled = list(range(full + 1, used + 1))
    never_used = list(range(used + 1, used + spare + 1))
    assert engine.free_order() == partly_filled + never_used + list(range(full, 0, -1))


@examples(60)
@given(block_size=st.integers(1, 9), lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_without_caching_reuse_is_last_in_first_out(block_size, lengths):
    engine = Engine(40, block_size=block_size, enable_prefix_caching=False)
    expected = list(range(1, 41))
    for length in lengths:
        engine.serve(length)
        # Freed from the table's end, in front: the last block of the table comes first.
        used = expected[: blocks(length, block_size)]
        expected = used[::-1] + expected[len(used) :]
        assert engine.free_order() == expected
        assert engine.pool.num_hashed_blocks == engine.pool.num_cached_keys == 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_requests_that_finish_together_are_freed_in_the_order_they_ran(asynchronous):
    engine = Engine(6, block_size=4, async_scheduling=asynchronous)
    for name in "abc":
        engine.add(name, 8)
    engine.run()
    assert engine.free_order() == [2, 1, 4, 3, 6, 5]


def test_the_last_holder_decides_where_a_shared_block_goes():
    engine = Engine(8, block_size=4)
    shared = engine.fresh(4)
    engine.add("long", shared + engine.fresh(4), 3)
    engine.add("short", shared + engine.fresh(4), 1)
    engine.iterate()
    assert (engine.table("long"), engine.scheduler.running) == ([1, 2], [engine.requests["long"]])
    assert engine.free_order() == [4, 5, 6, 7, 8, 3], "block 1 is still held by the long request"
    engine.run()
    assert engine.free_order() == [4, 5, 6, 7, 8, 3, 2, 1]
