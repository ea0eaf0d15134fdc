"""D4: the slots that a request needs are its prompt and all output tokens but the last (inference-sim#492)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.request import FinishReason
from tests.cases.engine_harness import Engine, blocks
from tests.parts import examples


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("max_tokens", [15, 16])
def test_the_reported_lengths_fit(max_tokens, asynchronous):
    engine = Engine(2, async_scheduling=asynchronous)
    request = engine.add("a", 17, max_tokens)
    engine.run()
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_output_tokens == max_tokens
    assert engine.statistics.num_preemptions == 0


def test_one_token_more_does_not_fit():
    engine = Engine(2)
    assert engine.add("a", 17, 17).finish_message == "needs 3 blocks, pool 2"
    engine = Engine(2, vllm_strict=True)
    request = engine.add("a", 17, 17)
    engine.run_dry()
    assert (request.is_finished, request.num_output_tokens, request.num_preemptions) == (False, 16, 1)


@examples(120)
@given(
    block_size=st.integers(1, 9),
    prompt=st.integers(1, 50),
    max_tokens=st.integers(1, 40),
    asynchronous=st.booleans(),
    budget=st.integers(1, 60),
    max_model_len=st.sampled_from([51, 60, 8192]),
)
def test_the_smallest_pool_in_which_a_request_runs(block_size, prompt, max_tokens, asynchronous, budget, max_model_len):
    """It finishes in it without any preemption, and never runs in one block less."""
    num_slots = min(prompt + max_tokens, max_model_len) - 1
    least = blocks(num_slots, block_size)
    config = {
        "block_size": block_size,
        "async_scheduling": asynchronous,
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
    }
    engine = Engine(least, **config)
    request = engine.add("a", prompt, max_tokens)
    most = 0
    while engine.core.has_work():
        engine.iterate()
        most = max(most, engine.pool.num_used_blocks)
    assert request.finish_reason is FinishReason.LENGTH
    assert request.num_tokens == num_slots + 1
    assert request.num_preemptions == 0
    assert most <= least
    if least > 1:
        engine = Engine(least - 1, **config)
        request = engine.add("a", prompt, max_tokens)
        assert request.finish_reason is FinishReason.REJECTED
        assert request.finish_message == f"needs {least} blocks, pool {least - 1}"
        assert not engine.core.has_work()


@examples(60)
@given(block_size=st.integers(1, 9), prompt=st.integers(1, 30), max_tokens=st.integers(1, 30))
def test_a_block_is_taken_when_its_first_slot_is_written(block_size, prompt, max_tokens):
    engine = Engine(blocks(60, block_size), block_size=block_size)
    engine.add("a", prompt, max_tokens)
    for slots in range(prompt, prompt + max_tokens):
        engine.core.schedule_next()
        assert len(engine.table("a")) == blocks(slots, block_size)
        engine.core.process([[0]])
    assert engine.pool.num_used_blocks == 0
