"""S13: the prefix cache can be reset only while nothing is held."""

import pytest

from tests.cases.engine_harness import Engine, shape

both_loops = pytest.mark.parametrize("asynchronous", [False, True])


@both_loops
def test_a_reset_while_busy_does_nothing(asynchronous):
    engine = Engine(8, async_scheduling=asynchronous)
    cached = engine.fresh(33)
    engine.serve(cached)
    engine.add("a", 40, 5)
    engine.iterate()
    keys, order = list(engine.pool.keys), engine.free_order()
    assert engine.pool.num_used_blocks == 3
    assert engine.scheduler.reset_prefix_cache() is False
    assert (list(engine.pool.keys), engine.free_order()) == (keys, order)
    assert engine.cached_prefix(cached) == 32
    engine.scheduler.abort("a")
    order = engine.free_order()
    assert engine.scheduler.reset_prefix_cache() is True
    assert engine.pool.num_used_blocks == 0
    assert engine.pool.num_hashed_blocks == engine.pool.num_cached_keys == 0
    assert engine.free_order() == order, "the order of the queue is kept"
    assert engine.cached_prefix(cached) == 0
    engine.run()


@pytest.mark.parametrize("num_cached", [0, 1, 5])
@pytest.mark.parametrize("num_held", [1, 2, 4])
def test_any_held_block_prevents_it(num_cached, num_held):
    engine = Engine(10)
    if num_cached:
        engine.serve(16 * num_cached)
    engine.add("a", 16 * num_held, 2)
    engine.iterate()
    assert engine.pool.num_used_blocks == num_held
    hashed = engine.pool.num_hashed_blocks
    assert engine.scheduler.reset_prefix_cache() is False
    assert engine.pool.num_hashed_blocks == hashed


@both_loops
def test_a_reset_clears_the_logged_hit_rate_and_keeps_the_counters(asynchronous):
    engine = Engine(10, async_scheduling=asynchronous)
    prompt = engine.fresh(32)
    engine.serve(prompt)
    engine.serve(prompt)
    assert engine.statistics.recent_hit_rate.rate == 16 / 64
    assert engine.scheduler.reset_prefix_cache()
    assert engine.statistics.recent_hit_rate.rate == 0.0
    assert engine.statistics.prefix_cache.queries == 64


@both_loops
@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_forced_reset_starts_running_requests_again_in_their_order(asynchronous, turns):
    engine = Engine(20, async_scheduling=asynchronous)
    outputs = {name: engine.fresh(6) for name in "abc"}
    for name in "abc":
        engine.add(name, 20, 6, outputs=outputs[name])
    for _ in range(turns):
        engine.iterate()
    delivered = {name: request.num_output_tokens for name, request in engine.requests.items()}
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True) is True
    assert engine.pool.num_used_blocks == engine.pool.num_hashed_blocks == 0
    step = engine.iterate()
    assert [request.request_id for request in step.preempted] == ["c", "b", "a"]
    assert shape(step) == {name: 20 + delivered[name] for name in "abc"}
    assert all(admission.num_hit_tokens == 0 and admission.resumed for admission in step.admitted)
    engine.run()
    for name, request in engine.requests.items():
        assert request.content.token_ids(20, 99) == outputs[name], "outputs dropped are sampled again"
        assert (request.num_in_flight_samples, request.drop_samples) == (0, 0)


@both_loops
def test_resets_at_every_turn(asynchronous):
    engine = Engine(20, async_scheduling=asynchronous)
    request = engine.add("a", 20, 4)
    for _ in range(200):
        if not engine.core.has_work():
            break
        engine.iterate()
        engine.scheduler.reset_prefix_cache(reset_running_requests=len(engine.steps) % 3 == 0)
    assert request.num_output_tokens == 4
