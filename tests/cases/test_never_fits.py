"""D5: requests that no pool state can serve (vllm#35541, vllm#39734, vllm#35570).

vLLM lets such a request wait at the head of the queue for ever, with everyone behind it. Our policy: it is rejected
at once when its length is known to be too much, and ends with ``capacity`` when it outgrows the pool; with
``vllm_strict`` the engine hangs as vLLM does.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.request import FinishReason
from kvtwin.engine.speculation import Speculation
from tests.cases.engine_harness import Engine, blocks
from tests.parts import examples

both_loops = pytest.mark.parametrize("asynchronous", [False, True])
EOS = 7


@both_loops
def test_a_prompt_larger_than_the_pool_is_rejected_and_the_next_one_served(asynchronous):
    engine = Engine(9, async_scheduling=asynchronous)
    big = engine.add("big", 160)
    small = engine.add("small", 16, 4)
    assert (big.finish_reason, big.finish_message) == (FinishReason.REJECTED, "needs 10 blocks, pool 9")
    assert engine.scheduler.take_ended() == [big]
    engine.run()
    assert (small.finish_reason, small.num_output_tokens) == (FinishReason.LENGTH, 4)
    assert engine.statistics.num_rejected == 1
    assert engine.statistics.prefix_cache.requests == 1, "a rejected request is not looked up"


@both_loops
def test_vllm_schedules_nothing_for_ever(asynchronous):
    engine = Engine(9, async_scheduling=asynchronous, vllm_strict=True)
    engine.add("big", 160)
    engine.add("small", 16, 4)
    engine.run_dry()
    assert engine.unfinished() == ["big", "small"]
    assert engine.statistics.num_scheduled_tokens == engine.statistics.num_rejected == 0


@both_loops
def test_a_request_that_would_outgrow_the_pool_is_rejected_at_once(asynchronous):
    engine = Engine(9, async_scheduling=asynchronous)
    request = engine.add("a", 120, 60)
    assert (request.finish_reason, request.finish_message) == (FinishReason.REJECTED, "needs 12 blocks, pool 9")
    assert not engine.core.has_work()


@both_loops
def test_vllm_stops_it_at_25_tokens_and_hangs(asynchronous):
    engine = Engine(9, async_scheduling=asynchronous, vllm_strict=True)
    request = engine.add("a", 120, 60)
    engine.run_dry()
    assert (request.is_finished, request.num_output_tokens) == (False, 25)


def test_the_length_that_max_model_len_cuts_off_does_not_count():
    engine = Engine(9, max_model_len=145)
    request = engine.add("a", 120, 10_000)
    engine.run()
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.LENGTH, 25)
    assert Engine(9, max_model_len=146).add("a", 120, 10_000).finish_reason is FinishReason.REJECTED


@pytest.mark.parametrize("stops_by", [{"eos_token_id": EOS}, {"stop_token_ids": frozenset({EOS})}])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_request_that_may_stop_early_is_ended_when_it_outgrows_the_pool(stops_by, asynchronous):
    engine = Engine(9, async_scheduling=asynchronous)
    request = engine.add("a", 120, 60, **stops_by)
    engine.run()
    assert request.num_output_tokens == 25
    assert (request.finish_reason, request.finish_message) == (FinishReason.CAPACITY, "needs 10 blocks, pool 9")
    assert engine.statistics.num_rejected == 1


def test_nobody_else_is_ended_in_place_of_the_request_that_outgrew_the_pool():
    """The more important request stands at the head when the running one preempts itself."""
    engine = Engine(9, scheduling_policy="priority")
    engine.add("outgrows", 120, 60, priority=5, eos_token_id=EOS)
    while engine.requests["outgrows"].num_tokens < 145:
        engine.iterate()
    important = engine.add("important", 140, 1, priority=0)
    engine.run()
    assert important.finish_reason is FinishReason.LENGTH
    assert engine.requests["outgrows"].finish_reason is FinishReason.CAPACITY


@both_loops
def test_it_is_served_when_it_stops_in_time(asynchronous):
    engine = Engine(9, async_scheduling=asynchronous)
    outputs = [*range(100, 124), EOS]
    request = engine.add("a", 120, 60, eos_token_id=EOS, outputs=outputs)
    engine.run()
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.STOP, 25)


@examples(150)
@given(
    block_size=st.integers(1, 6),
    usable=st.integers(1, 12),
    lengths=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=8),
    asynchronous=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_exactly_those_that_never_fit_are_rejected(block_size, usable, lengths, asynchronous, policy):
    engine = Engine(usable, block_size=block_size, async_scheduling=asynchronous, scheduling_policy=policy)
    for index, (prompt, max_tokens) in enumerate(lengths):
        engine.add(str(index), prompt, max_tokens, priority=index % 3)
    engine.run()
    for index, (prompt, max_tokens) in enumerate(lengths):
        request = engine.requests[str(index)]
        needed = blocks(prompt + max_tokens - 1, block_size)
        if needed > usable:
            assert request.finish_reason is FinishReason.REJECTED
            assert request.finish_message == f"needs {needed} blocks, pool {usable}"
            assert request.num_output_tokens == 0
        else:
            assert (request.finish_reason, request.num_output_tokens) == (FinishReason.LENGTH, max_tokens)


@examples(150)
@given(
    spec=st.sampled_from(
        [CacheGroupSpec("sliding_window", 4, 9), CacheGroupSpec("chunked_local_attention", 4, 8)],
    ),
    usable=st.integers(2, 12),
    num_drafts=st.integers(1, 6),
    prompt=st.integers(1, 40),
    chunk=st.sampled_from([0, 7]),
    asynchronous=st.booleans(),
)
def test_a_window_has_room_for_what_the_drafter_writes_too(spec, usable, num_drafts, prompt, chunk, asynchronous):
    """Alone, a request that is not rejected is served: it does not preempt itself over and over."""
    engine = Engine(
        usable,
        cache_groups=(spec,),
        speculation=Speculation(method="draft_model", num_speculative_tokens=num_drafts),
        enable_prefix_caching=False,
        async_scheduling=asynchronous,
        max_num_batched_tokens=8,
        long_prefill_token_threshold=chunk,
        max_num_seqs=1,
        max_model_len=100,
    )
    request = engine.add("a", prompt, 5)
    engine.run(max_iterations=200)
    assert request.finish_reason in (FinishReason.LENGTH, FinishReason.REJECTED)


@both_loops
def test_a_window_has_room_for_steps_above_the_batched_tokens(asynchronous):
    """Alone, a request that is not rejected is served, whichever of the two limits is larger."""
    for usable in range(2, 30):
        engine = Engine(
            usable,
            cache_groups=(CacheGroupSpec("sliding_window", 4, 9),),
            enable_prefix_caching=False,
            async_scheduling=asynchronous,
            max_num_batched_tokens=8,
            max_num_scheduled_tokens=40,
            max_num_seqs=1,
        )
        request = engine.add("a", 60, 5)
        engine.run(max_iterations=200)
        assert request.finish_reason in (FinishReason.LENGTH, FinishReason.REJECTED)


def test_an_adapter_where_none_may_run():
    engine = Engine(9)
    request = engine.add("a", 16, lora="sql")
    assert request.finish_reason is FinishReason.REJECTED
    assert request.finish_message == "needs LoRA adapter sql, but max_loras is 0"


@both_loops
def test_a_prompt_that_no_step_can_hold(asynchronous):
    """Without chunked prefill a step must compute the whole prompt, which max_num_scheduled_tokens may forbid."""
    engine = Engine(
        100,
        max_model_len=200,
        max_num_batched_tokens=200,
        max_num_scheduled_tokens=50,
        enable_chunked_prefill=False,
        async_scheduling=asynchronous,
    )
    first = engine.add("first", 50, 3)
    big = engine.add("big", 51)
    last = engine.add("last", 50)
    engine.run()
    assert [request.finish_reason for request in (first, big, last)] == [
        FinishReason.LENGTH,
        FinishReason.REJECTED,
        FinishReason.LENGTH,
    ]
    assert big.finish_message == "51 tokens cannot be computed in one step of 50"
