"""Swapping and offloading: what they decide. That contents are right is shown in tests/cases/test_contents.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.host_memory.host_pool import HostPool
from kvtwin.engine.host_memory.offload_tier import OffloadTier
from kvtwin.engine.phantom_blocks import PhantomBlocks
from tests.cases.engine_harness import Engine, shape
from tests.cases.test_contents import GROUPS, INFINITE, Arrival, ContentRun, crowd
from tests.parts import examples

SWAP = {"preemption_mode": "swap", "num_swap_blocks": 100}


# ---------------------------------------------------------------- whatever happens


@examples(150)
@given(
    seed=st.integers(0, 2**32),
    groups=st.sampled_from(list(GROUPS)),
    num_swap_blocks=st.just(0) | st.integers(1, 20) | st.just(INFINITE),
    num_offload_blocks=st.just(0) | st.integers(1, 20) | st.just(INFINITE),
)
def test_counts_add_up(seed, groups, num_swap_blocks, num_offload_blocks):
    """The run itself checks contents, invariants and that it ends."""
    config, events = crowd(seed, GROUPS[groups])
    config["num_offload_blocks"] = num_offload_blocks if config["enable_prefix_caching"] else 0
    if num_swap_blocks:
        config |= {"preemption_mode": "swap", "num_swap_blocks": num_swap_blocks}
    run = ContentRun(config, events)
    run.check_outputs()
    cache, statistics = run.scheduler.kv_cache, run.scheduler.statistics
    pools = [memory.pool for memory in cache.host_memory]
    assert sum(len(step.saves) for step in run.steps) == sum(pool.num_saved_blocks for pool in pools)
    assert sum(len(step.loads) for step in run.steps) == sum(pool.num_loaded_blocks for pool in pools)
    if cache.swap:
        assert cache.swap.pool.num_loaded_blocks <= cache.swap.pool.num_saved_blocks
        assert len(cache.swap.pool.free_blocks()) == num_swap_blocks, "nobody is left who owns any"
        assert cache.swap.num_fallbacks <= statistics.num_preemptions
    if num_swap_blocks == INFINITE:
        assert cache.swap.num_fallbacks == 0
        assert run.was_reset or statistics.num_recomputed_tokens == 0
    device, external = statistics.prefix_cache, statistics.external_prefix_cache
    if cache.offload:
        assert external.queries == device.queries - device.hits
        assert external.hits <= external.queries
        assert cache.offload.pool.num_saved_blocks <= cache.pool.num_evictions
    else:
        assert external.queries == 0


@examples(150)
@given(seed=st.integers(0, 2**32), groups=st.sampled_from(list(GROUPS)), asynchronous=st.booleans())
@pytest.mark.slow
def test_an_infinite_tier_hits_what_an_infinite_pool_hits(seed, groups, asynchronous):
    """One request at a time, so that both admit in the same order; request by request, on all kinds of groups."""
    config, events = crowd(seed, GROUPS[groups], interrupted=False)
    config |= {"async_scheduling": asynchronous, "enable_prefix_caching": True, "cache_groups": GROUPS[groups]}
    events = [event for event in events if isinstance(event, Arrival)]
    events = [Arrival(500 * i, e.prompt, e.max_tokens, e.root, e.stops, 0) for i, e in enumerate(events)]
    config["num_offload_blocks"] = INFINITE
    alone = ContentRun(config, events)
    ends = zip(events, alone.arrivals, strict=True)
    events = [event for event, request in ends if request.finish_reason in ("stop", "length")]  # they fit
    offloaded, infinite = (
        ContentRun(config, events),
        ContentRun(config | {"num_blocks": INFINITE, "num_offload_blocks": 0}, events),
    )
    assert infinite.scheduler.kv_cache.pool.num_evictions == 0
    assert hits(offloaded) == hits(infinite)
    statistics = offloaded.scheduler.statistics
    total = statistics.prefix_cache.hits + statistics.external_prefix_cache.hits
    assert total == infinite.scheduler.statistics.prefix_cache.hits


def hits(run):
    return [(each.request.request_id, each.num_hit_tokens) for step in run.steps for each in step.admitted]


# ---------------------------------------------------------------- swapping


def test_a_preempted_request_continues_where_it_was():
    """Two requests of 3 blocks in a pool of 5; the second is preempted with 10 computed tokens in 3 blocks."""
    engine = Engine(5, block_size=4, **SWAP)
    engine.add("first", 8, 8)
    second = engine.add("second", 8, 8)
    engine.iterate()
    out = engine.iterate()
    assert [request.request_id for request in out.preempted] == ["second"]
    assert len(out.saves) == 2
    assert second.num_computed_tokens == 0
    assert second in engine.cache.swap
    engine.run()
    (step,) = [step for step in engine.steps if step.admitted and step.admitted[0].resumed]
    (admission,) = step.admitted
    assert admission.swapped
    assert admission.num_hit_tokens == 8
    assert shape(step)["second"] == 1
    # Its first two blocks were the last to be evicted: what the device still had was not copied back.
    assert len(step.loads) <= 2
    assert engine.statistics.num_recomputed_tokens == 0
    assert engine.statistics.prefix_cache.preempted_requests == 0
    assert second.num_output_tokens == 8


def test_without_prefix_caching_all_is_copied_back():
    engine = Engine(5, block_size=4, enable_prefix_caching=False, **SWAP)
    engine.add("first", 8, 8)
    engine.add("second", 9, 8)
    steps = engine.run()
    (out,) = [step for step in steps if step.saves]
    (back,) = [step for step in steps if step.loads]
    assert [copy.host_block for copy in out.saves] == [copy.host_block for copy in back.loads]
    assert engine.statistics.num_recomputed_tokens == 0


def test_without_room_in_the_host_it_recomputes():
    engine = Engine(5, block_size=4, enable_prefix_caching=False, preemption_mode="swap", num_swap_blocks=1)
    engine.add("first", 8, 8)
    engine.add("second", 9, 8)
    steps = engine.run()
    assert not any(step.saves or step.loads for step in steps)
    assert engine.cache.swap.num_fallbacks == engine.statistics.num_preemptions == 1
    assert engine.statistics.num_recomputed_tokens > 0


def test_an_abort_lets_go_of_host_blocks():
    engine = Engine(5, block_size=4, **SWAP)
    engine.add("first", 8, 8)
    engine.add("second", 8, 8)
    engine.iterate()
    engine.iterate()
    assert len(engine.cache.swap.pool.free_blocks()) == 98
    engine.scheduler.abort("second")
    assert len(engine.cache.swap.pool.free_blocks()) == 100


@pytest.mark.parametrize("forced", [False, True])
def test_a_reset_makes_swapped_contents_stale(forced):
    engine = Engine(5, block_size=4, **SWAP)
    engine.add("first", 8, 8)
    second = engine.add("second", 8, 8)
    engine.iterate()
    engine.iterate()
    if not forced:
        engine.scheduler.abort("first")
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=forced)
    assert second not in engine.cache.swap
    assert len(engine.cache.swap.pool.free_blocks()) == 100
    engine.run()
    assert engine.hits("second")[-1] == 0


# ---------------------------------------------------------------- offloading


def test_an_evicted_prefix_is_found_in_the_host():
    engine = Engine(5, block_size=4, num_offload_blocks=10)
    prompt = engine.fresh(13)
    engine.serve(prompt)
    engine.serve(18)
    assert engine.cached_prefix(prompt) == 12
    assert engine.serve(prompt) == 12
    statistics = engine.statistics
    assert statistics.prefix_cache.hits + statistics.external_prefix_cache.hits == 12
    assert statistics.external_prefix_cache.hits == engine.cache.offload.pool.num_loaded_blocks * 4
    assert statistics.external_prefix_cache.queries == 13 + 18 + 13 - statistics.prefix_cache.hits


def test_the_tier_replaces_what_was_used_least_recently():
    tier = OffloadTier(2, PhantomBlocks(BlockPool(2)))
    tier.store(1, 11)
    tier.store(2, 12)
    tier.store(1, 13)  # known: a use, not a copy
    tier.store(3, 14)
    find = tier.second_chance(lambda key: None)
    assert [find(key) is not None for key in (1, 2, 3)] == [True, False, True]
    saves, _ = tier.pool.take_copies()
    assert [copy.device_block for copy in saves] == [11, 12, 14]


def test_a_tier_does_not_replace_what_the_step_reads():
    tier = OffloadTier(1, PhantomBlocks(BlockPool(2)))
    tier.store(1, 11)
    tier.pool.take_copies()
    table = [[tier.second_chance(lambda key: None)(1)]]
    tier.load(tier.take_loads(table, [[1]]), [12])
    tier.store(2, 13)
    assert tier.second_chance(lambda key: None)(2) is None
    tier.pool.take_copies()
    tier.store(2, 13)
    assert tier.second_chance(lambda key: None)(2) is not None


def test_a_reset_empties_the_tier():
    engine = Engine(5, block_size=4, num_offload_blocks=10)
    prompt = engine.fresh(13)
    engine.serve(prompt)
    engine.serve(18)
    assert engine.scheduler.reset_prefix_cache()
    assert engine.serve(prompt) == 0


# ---------------------------------------------------------------- host blocks


def test_a_host_block_that_is_read_is_handed_out_after_the_step():
    pool = HostPool(1)
    (block,) = pool.save([5])
    assert pool.save([6]) is None
    pool.take_copies()
    pool.load(block, 7)
    pool.free([block])
    assert pool.save([8]) is None
    assert pool.free_blocks() == [block]
    _, loads = pool.take_copies()
    assert loads == [(7, block)]
    assert pool.save([8]) == [block]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"preemption_mode": "swap"}, "num_swap_blocks: expected at least 1, got 0"),
        ({"preemption_mode": "forget"}, "preemption_mode: expected one of recompute, swap, got forget"),
        ({"num_offload_blocks": -1}, "num_offload_blocks: expected at least 0, got -1"),
        ({"num_offload_blocks": 1, "enable_prefix_caching": False}, "num_offload_blocks: .* enable_prefix_caching"),
    ],
)
def test_settings_that_cannot_be(config, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(num_blocks=10, **config)
