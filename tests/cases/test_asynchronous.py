"""Scheduling one step ahead of the results: what comes a step later than it does synchronously, and what does not."""

import pytest

from kvtwin.engine.request import FinishReason, RequestStatus
from tests.cases.engine_harness import Engine, shape

EOS = 7


@pytest.mark.parametrize(("asynchronous", "num_steps"), [(False, 3), (True, 4)])
def test_a_token_is_computed_before_its_input_is_known_and_none_in_vain(asynchronous, num_steps):
    """Where ``max_tokens`` ends the request no step is wasted; the end is seen one iteration later."""
    engine = Engine(9, async_scheduling=asynchronous)
    request = engine.add("a", 8, 3)
    iterations = 0
    while not request.is_finished:
        engine.iterate()
        iterations += 1
    assert iterations == num_steps
    assert [shape(step) for step in engine.steps if step.requests] == [{"a": 8}, {"a": 1}, {"a": 1}]


@pytest.mark.parametrize(("asynchronous", "iterations"), [(False, 2), (True, 3)])
def test_a_block_filled_by_an_output_is_hit_able_when_the_output_is_known(asynchronous, iterations):
    engine = Engine(9, block_size=4, async_scheduling=asynchronous)
    engine.add("a", 3, 9)
    num_hashed = []
    for _ in range(iterations):
        engine.iterate()
        num_hashed.append(engine.pool.num_hashed_blocks)
    assert num_hashed == [0] * (iterations - 1) + [1]


def test_an_end_of_sequence_wastes_a_step_whose_blocks_are_free_at_once():
    """The token of step 1 ends the request, which is in step 2 with a third block; blocks 1, 2 are full and known."""
    engine = Engine(5, block_size=4, async_scheduling=True)
    request = engine.add("a", 7, 50, outputs=[1, EOS], eos_token_id=EOS)
    assert [shape(engine.iterate()) for _ in range(3)] == [{"a": 7}, {"a": 1}, {"a": 1}]
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.STOP, 2)
    assert [step.total_tokens for step in engine.core.in_flight] == [1]
    assert engine.free_order() == [3, 4, 5, 2, 1]
    engine.run()
    assert request.num_output_tokens == 2, "the wasted step's token is dropped"


def preempted_while_its_token_is_under_way(max_tokens, **config):
    """``b`` is preempted by ``a`` while a step of it is in flight, in a pool of six blocks."""
    engine = Engine(6, block_size=4, async_scheduling=True, vllm_strict=True, **config)
    engine.add("a", 8, 20)
    request = engine.add("b", 8, max_tokens)
    while not request.num_preemptions:
        known = request.num_tokens
        engine.iterate()
    return engine, request, known


def test_a_preempted_request_gets_the_token_that_was_under_way():
    engine, request, known = preempted_while_its_token_is_under_way(20)
    assert request.status is RequestStatus.PREEMPTED
    assert (request.num_tokens, request.num_computed_tokens) == (known + 1, 0)
    assert [waiting.request_id for waiting in engine.scheduler.waiting] == ["b"]


def test_a_preempted_request_may_end_while_it_waits():
    engine, request, _ = preempted_while_its_token_is_under_way(5)
    assert (request.finish_reason, request.num_output_tokens) == (FinishReason.LENGTH, 5)
    assert not engine.scheduler.waiting
    assert engine.statistics.prefix_cache.preempted_requests == 0


def test_a_preempted_request_is_passed_over_until_its_token_has_come():
    """The loop of two steps processes it before the next admission; so here the scheduler is driven by hand."""
    engine = Engine(6, block_size=4, async_scheduling=True, vllm_strict=True, max_num_seqs=2)
    scheduler = engine.scheduler
    for name, prompt in (("a", 8), ("b", 8), ("c", 1)):
        engine.add(name, prompt, 20)
    step = scheduler.schedule()
    while True:
        following = scheduler.schedule()
        if following.preempted:
            break
        scheduler.update(step, [[0] if samples else [] for samples in step.samples])
        step = following
    assert [request.request_id for request in step.requests] == ["a", "b"], "whose output was not processed yet"
    assert [request.request_id for request in scheduler.waiting] == ["b", "c"]
    assert [admission.request.request_id for admission in scheduler.schedule().admitted] == ["c"]
    assert [request.request_id for request in scheduler.waiting] == ["b"]
