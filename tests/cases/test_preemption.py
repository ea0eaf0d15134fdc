"""D7, S5, S6: what a preempted request keeps, finds again and counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.statistics import RecentHitRate
from tests.cases.engine_harness import Engine, blocks, shape
from tests.parts import examples


def two_in_seven_blocks(a_outputs, b_outputs, **config):
    """Two prompts of three blocks each; one block is left, and the first request takes it."""
    engine = Engine(7, **config)
    engine.add("a", 48, a_outputs)
    engine.add("b", 48, b_outputs)
    return engine


def test_retries_count_once_and_preempted_requests_apart():
    """D7, vllm#43736, vllm#25780."""
    engine = two_in_seven_blocks(30, 10)
    engine.run()
    assert [[request.request_id for request in step.preempted] for step in engine.steps[:3]] == [[], ["b"], []]
    resumed = next(step for step in engine.steps[1:] if step.admitted)
    assert resumed.finished == [engine.requests["a"]], "b waits until a ends"
    counts = engine.statistics.prefix_cache
    assert (counts.requests, counts.queries, counts.hits) == (2, 96, 0)
    assert (counts.preempted_requests, counts.preempted_queries, counts.preempted_hits) == (1, 49, 32)
    assert engine.statistics.num_preemptions == 1


def test_the_block_table_is_replaced_when_a_request_resumes():
    """S5, vllm-omni PR 6053, vllm-ascend PR 11334."""
    engine = two_in_seven_blocks(20, 10)
    tables = []
    while engine.core.has_work():
        step = engine.core.schedule_next()
        tables += [admission.block_tables for admission in step.admitted if admission.request.request_id == "b"]
        engine.core.process([[0] if samples else [] for samples in step.samples])
    assert tables == [[[4, 5, 6]], [[4, 5, 6, 7]]]


@pytest.mark.parametrize(("caching", "recomputed"), [(False, 49), (True, 17)])
def test_without_caching_everything_is_computed_again(caching, recomputed):
    """S6, dynamo PR 8451."""
    engine = two_in_seven_blocks(20, 4, enable_prefix_caching=caching)
    engine.run()
    resumed = next(step for step in engine.steps[1:] if step.admitted)
    assert shape(resumed) == {"b": recomputed}
    assert engine.statistics.num_recomputed_tokens == recomputed - 1
    assert engine.statistics.prefix_cache.queries == (96 if caching else 0)


@examples(150)
@given(
    block_size=st.integers(1, 6),
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 25)), min_size=2, max_size=7),
    spare=st.integers(0, 6),
    asynchronous=st.booleans(),
    caching=st.booleans(),
    budget=st.integers(4, 80),
)
def test_what_is_counted_under_pressure(block_size, lengths, spare, asynchronous, caching, budget):
    """Every request counts once with its prompt; every resumption counts apart, with what was known then."""
    needs = [blocks(prompt + max_tokens - 1, block_size) for prompt, max_tokens in lengths]
    engine = Engine(
        max(needs) + spare,
        block_size=block_size,
        async_scheduling=asynchronous,
        enable_prefix_caching=caching,
        max_num_batched_tokens=budget,
    )
    for index, (prompt, max_tokens) in enumerate(lengths):
        engine.add(str(index), prompt, max_tokens)
    resumed_queries = resumed_hits = computed = 0
    while engine.core.has_work():
        known = {request: request.num_tokens for request in engine.scheduler.waiting}
        step = engine.iterate()
        for admission in step.admitted if step else ():
            table = admission.block_tables[0]
            first = admission.num_hit_tokens + shape(step)[admission.request.request_id]
            assert len(table) == len(set(table)) == blocks(first, block_size)
            if admission.resumed:
                resumed_queries += known[admission.request]
                resumed_hits += admission.num_hit_tokens
            else:
                assert admission.num_hit_tokens == 0, "all prompts differ"
        computed += step.total_tokens if step else 0
    counts, statistics = engine.statistics.prefix_cache, engine.statistics
    requests = engine.requests.values()
    expected = (len(lengths), sum(prompt for prompt, _ in lengths), 0) if caching else (0, 0, 0)
    assert (counts.requests, counts.queries, counts.hits) == expected
    if caching and not asynchronous:  # else one may end by an output that was in flight, without resuming
        assert counts.preempted_requests == statistics.num_preemptions
    assert counts.preempted_queries == (resumed_queries if caching else 0)
    assert counts.preempted_hits == resumed_hits == (resumed_hits if caching else 0)
    assert counts.preempted_hits <= counts.preempted_queries
    assert sum(request.num_preemptions for request in requests) == statistics.num_preemptions
    assert statistics.num_scheduled_tokens == computed
    needed = sum(prompt + max_tokens - 1 for prompt, max_tokens in lengths)
    assert computed - statistics.num_recomputed_tokens == needed


@pytest.mark.parametrize("asynchronous", [False, True])
def test_preempted_requests_go_back_to_the_head_in_their_old_order(asynchronous):
    """A chunk of two blocks costs the two requests admitted last their only block."""
    engine = Engine(
        8,
        block_size=4,
        async_scheduling=asynchronous,
        max_num_batched_tokens=12,
        long_prefill_token_threshold=8,
    )
    engine.add("long", 32)
    engine.iterate()
    for name in "bcd":
        engine.add(name, 1, 4)
    assert shape(engine.iterate()) == {"long": 8, "b": 1, "c": 1, "d": 1}
    engine.add("e", 1)
    step = engine.iterate()
    assert [request.request_id for request in step.preempted] == ["d", "c"]
    assert shape(step) == {"long": 8, "b": 1}
    assert [request.request_id for request in engine.scheduler.waiting] == ["c", "d", "e"]
    engine.run()


def test_nobody_is_admitted_in_a_step_that_preempted():
    engine = two_in_seven_blocks(30, 10)
    engine.add("small", 1)
    while engine.core.has_work():
        step = engine.iterate()
        assert not (step.preempted and step.admitted)


def test_nobody_is_admitted_in_a_step_that_preempted_though_there_is_room():
    """The more important of those that wait would fit into what the victim left."""
    engine = Engine(7, scheduling_policy="priority")
    engine.add("a", 48, 9)
    engine.add("b", 48, 9, priority=5)
    engine.iterate()
    engine.add("small", 1, priority=1)
    step = engine.iterate()
    assert ([request.request_id for request in step.preempted], step.admitted) == (["b"], [])
    assert engine.pool.num_free_blocks == 3
    assert [admission.request.request_id for admission in engine.iterate().admitted] == ["small"]


def test_the_rate_that_is_logged_covers_whole_steps():
    rate = RecentHitRate()
    rate.record_step(600, 100, 100)
    rate.record_step(400, 100, 0)
    assert rate.rate == 0.5, "1000 requests are kept"
    rate.record_step(0, 0, 0)
    assert rate.rate == 0.5
    rate.record_step(1, 100, 0)
    assert rate.rate == 0.0, "the first step falls out as a whole"
    rate.record_step(5_000, 100, 100)
    assert rate.rate == 1.0, "the latest step always counts"
    rate.clear()
    assert rate.rate == 0.0


@examples(100)
@given(steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50), st.floats(0, 1)), max_size=40))
def test_the_rate_recomputed_from_the_list_of_steps(steps):
    rate = RecentHitRate(max_requests=10)
    records = []
    for requests, queries, share in steps:
        hits = int(queries * share)
        rate.record_step(requests, queries, hits)
        if requests:
            records.append((requests, queries, hits))
        while len(records) > 1 and sum(record[0] for record in records) > 10:
            del records[0]
        queried = sum(record[1] for record in records)
        assert rate.rate == (sum(record[2] for record in records) / queried if queried else 0.0)
