"""D10, S1: an id that is in use, and a block that is freed twice."""

import pytest

from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.request import FinishReason, RequestStatus
from tests.cases.engine_harness import Engine

both_loops = pytest.mark.parametrize("asynchronous", [False, True])


@both_loops
@pytest.mark.parametrize("state", ["waiting", "running", "preempted"])
def test_a_second_request_under_a_live_id_is_refused(state, asynchronous):
    """vllm#10583, vllm#15041, vllm#29355."""
    engine = Engine(4, async_scheduling=asynchronous)
    first = engine.add("x", 20, 5)
    if state != "waiting":
        engine.iterate()
    if state == "preempted":
        engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert first.status is RequestStatus[state.upper()]
    free = engine.free_order()
    with pytest.raises(ValueError, match="'x'"):
        engine.add("x", 40)
    assert engine.free_order() == free
    assert engine.unfinished() == ["x"]
    engine.run()
    assert (first.finish_reason, first.num_output_tokens) == (FinishReason.LENGTH, 5)
    assert engine.pool.num_used_blocks == 0


@both_loops
@pytest.mark.parametrize("end", ["length", "abort", "rejected"])
def test_an_id_may_be_used_again_once_its_request_ended(end, asynchronous):
    engine = Engine(4, async_scheduling=asynchronous)
    engine.add("x", 20, 100 if end == "rejected" else 3)
    if end == "length":
        while not engine.requests["x"].is_finished:
            engine.iterate()
    elif end == "abort":
        engine.iterate()
        assert engine.scheduler.abort("x") is engine.requests["x"]
    assert engine.requests["x"].finish_reason == end
    second = engine.add("x", 40, 2)
    engine.run()
    assert (second.finish_reason, second.num_output_tokens) == (FinishReason.LENGTH, 2)
    assert engine.pool.num_used_blocks == 0


@both_loops
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_an_abort_at_any_time_leaves_nothing_behind(asynchronous, turns):
    engine = Engine(8, block_size=4, async_scheduling=asynchronous)
    outputs = engine.fresh(9)
    engine.add("x", 9, 9, outputs=outputs)
    other = engine.add("y", 9, 9)
    for _ in range(turns):
        engine.iterate()
    aborted = engine.scheduler.abort("x")
    assert aborted.finish_reason is FinishReason.ABORT
    num_output_tokens = aborted.num_output_tokens
    assert engine.scheduler.abort("x") is None
    engine.run()
    assert aborted.num_output_tokens == num_output_tokens, "outputs in flight are dropped"
    assert other.num_output_tokens == 9
    assert engine.pool.num_used_blocks == 0


@pytest.mark.parametrize("freed", [[1, 1], [1, 2, 1], [1, 2, 3], [3], [0, 1, 0, 1]])
def test_a_block_freed_more_often_than_held_is_refused_at_once(freed):
    """S1, vllm#42571, vllm#1556, vllm#3347."""
    pool = BlockPool(5)
    assert pool.allocate(2) == [1, 2]
    with pytest.raises(ValueError, match="is not held"):
        pool.free(freed)
    assert list(pool.ref_counts) == [0, 1, 1, 0, 0]
    assert (pool.num_free_blocks, pool.free_queue()) == (2, [3, 4])
    pool.free([1, 2])
    assert pool.free_queue() == [1, 2, 3, 4]


def test_a_block_may_be_freed_as_often_as_it_is_held():
    pool = BlockPool(3)
    pool.allocate(1)
    pool.touch([1])
    pool.free([1, 1])
    assert pool.free_queue() == [1, 2]
    with pytest.raises(ValueError, match="is not held"):
        pool.free([1])
    assert pool.num_free_blocks == 2
