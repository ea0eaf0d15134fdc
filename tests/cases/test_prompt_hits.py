"""D1: how much of a prompt that was served before is hit (vllm#11186, vllm#17999).

The last token is always computed again, and hits are whole blocks: ``floor((L - 1) / bs) * bs``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.engine_harness import Engine, blocks
from tests.parts import examples


@pytest.mark.parametrize(
    ("length", "hit"), [(15, 0), (16, 0), (17, 16), (32, 16), (47, 32), (48, 32), (49, 48), (64, 48)]
)
def test_the_reported_lengths(length, hit):
    engine = Engine(64)
    prompt = engine.fresh(length)
    assert [engine.serve(prompt), engine.serve(prompt)] == [0, hit]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 8, 16])
def test_every_length_up_to_four_blocks(block_size, asynchronous):
    for length in range(1, 4 * block_size + 2):
        engine = Engine(24, block_size=block_size, async_scheduling=asynchronous)
        prompt = engine.fresh(length)
        assert engine.serve(prompt) == 0
        assert engine.serve(prompt) == (length - 1) // block_size * block_size
        assert engine.statistics.prefix_cache.queries == 2 * length


@examples(60)
@given(block_size=st.integers(1, 32), shared=st.integers(0, 100), tails=st.tuples(*[st.integers(1, 60)] * 2))
def test_the_hit_of_a_prompt_that_shares_a_beginning(block_size, shared, tails):
    engine = Engine(400, block_size=block_size)
    beginning = engine.fresh(shared)
    engine.serve(beginning + engine.fresh(tails[0]))
    assert engine.serve(beginning + engine.fresh(tails[1])) == shared // block_size * block_size


@examples(60)
@given(block_size=st.integers(1, 16), length=st.integers(1, 70), max_tokens=st.integers(1, 40), data=st.data())
def test_outputs_are_hit_like_prompts_but_for_the_last_one(block_size, length, max_tokens, data):
    """The last output token is sampled and never computed, so its block is never cached."""
    engine = Engine(200, block_size=block_size, async_scheduling=data.draw(st.booleans(), label="asynchronous"))
    prompt, outputs = engine.fresh(length), engine.fresh(max_tokens)
    engine.serve(prompt, max_tokens, outputs=outputs)
    conversation = prompt + outputs
    computed = length + max_tokens - 1
    assert engine.cached_prefix([*conversation, 0]) == computed // block_size * block_size
    next_turn = conversation + engine.fresh(data.draw(st.integers(1, 30), label="next turn"))
    assert engine.serve(next_turn) == computed // block_size * block_size


@examples(60)
@given(block_size=st.integers(1, 16), length=st.integers(1, 70), budget=st.integers(1, 40))
def test_a_full_hit_computes_the_last_block_into_a_new_block(block_size, length, budget):
    engine = Engine(200, block_size=block_size, max_num_batched_tokens=budget)
    prompt = engine.fresh(length)
    engine.serve(prompt)
    keys = engine.pool.num_cached_keys
    again = engine.serve(prompt)
    whole = length % block_size == 0
    assert again == length - (block_size if whole else length % block_size)
    assert engine.pool.num_cached_keys == keys, "a duplicate adds no key"
    assert engine.pool.num_hashed_blocks == length // block_size + whole
    assert len(engine.free_order()) == engine.usable
    assert blocks(length, block_size) - again // block_size == 1
