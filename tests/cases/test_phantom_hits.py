"""Blocks that are hit-able though no step ever filled them (vllm#43569).

With the priority policy a request that is in the step already may be preempted in the same step, when its blocks
have their keys. ``vllm_strict`` serves such blocks as vLLM does and counts them; by default they are counted and
not served.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases.engine_harness import Engine, shape
from tests.parts import examples

both_loops = pytest.mark.parametrize("asynchronous", [False, True])
all_sizes = pytest.mark.parametrize(("block_size", "chunk"), [(4, 2), (4, 3), (16, 2), (16, 4)])


def with_phantoms(block_size, chunk, *, asynchronous=False, strict=False):
    """An idle engine that cached two thirds of a prompt of ``3 * chunk`` blocks and has phantoms of the last.

    The last ``chunk`` blocks were scheduled, got their keys and were rolled back in the same step; the request for
    whose sake this happened took the deepest of them. The prompt's request was aborted then. ``chunk + 1`` blocks
    without a key stand first in the free queue. Returns the engine and the prompt.
    """
    engine = Engine(
        4 * chunk + 1,
        block_size=block_size,
        scheduling_policy="priority",
        async_scheduling=asynchronous,
        long_prefill_token_threshold=chunk * block_size,
        vllm_strict=strict,
    )
    prompt = engine.fresh(3 * chunk * block_size)
    for index in range(chunk):
        engine.add(f"holder{index}", 1, block_size - 1)
    engine.add("low", prompt, priority=5)
    assert shape(engine.iterate())["low"] == chunk * block_size
    engine.add("high", block_size, 3)
    assert list(shape(engine.iterate()))[-2:] == ["low", "high"]
    step = engine.iterate()
    assert [request.request_id for request in step.preempted] == ["low"]
    assert "low" not in shape(step)
    assert len(engine.cache.phantoms.blocks) == chunk - 1
    engine.scheduler.abort("low")
    engine.run()
    assert len(engine.cache.phantoms.blocks) == chunk - 1
    return engine, prompt


@both_loops
@all_sizes
def test_by_default_a_phantom_is_counted_and_not_served(block_size, chunk, asynchronous):
    engine, prompt = with_phantoms(block_size, chunk, asynchronous=asynchronous)
    assert engine.serve(prompt) == 2 * chunk * block_size
    assert engine.statistics.phantom_hit_tokens == (chunk - 1) * block_size
    assert engine.statistics.prefix_cache.hits == 2 * chunk * block_size


@both_loops
@all_sizes
def test_strictly_a_phantom_is_counted_and_served(block_size, chunk, asynchronous):
    engine, prompt = with_phantoms(block_size, chunk, asynchronous=asynchronous, strict=True)
    assert engine.serve(prompt) == (3 * chunk - 1) * block_size
    assert engine.statistics.phantom_hit_tokens == (chunk - 1) * block_size
    assert engine.serve(prompt) == (3 * chunk - 1) * block_size
    assert engine.statistics.phantom_hit_tokens == 2 * (chunk - 1) * block_size, "still nobody filled them"


@both_loops
@all_sizes
def test_a_filled_duplicate_is_served_in_a_phantoms_place(block_size, chunk, asynchronous):
    engine, prompt = with_phantoms(block_size, chunk, asynchronous=asynchronous)
    before = set(engine.cache.phantoms.blocks)
    engine.serve(prompt)
    assert engine.cache.phantoms.blocks == before, "the prompt went into the blocks without a key"
    engine.add("again", [*prompt, 0])
    (admission,) = engine.iterate().admitted
    assert admission.num_hit_tokens == 3 * chunk * block_size
    assert not set(admission.block_tables[0]) & before
    assert engine.statistics.phantom_hit_tokens == 2 * (chunk - 1) * block_size
    engine.run()


@all_sizes
def test_eviction_clears_the_mark(block_size, chunk):
    engine, prompt = with_phantoms(block_size, chunk)
    marked = chunk - 1
    engine.serve((chunk + 2) * block_size)
    assert len(engine.cache.phantoms.blocks) == marked - 1
    engine.serve(engine.usable * block_size)
    assert engine.cache.phantoms.blocks == set()
    assert engine.serve(prompt) == 0
    assert engine.statistics.phantom_hit_tokens == 0


@all_sizes
def test_a_reset_clears_the_marks(block_size, chunk):
    engine, prompt = with_phantoms(block_size, chunk)
    engine.add("busy", 1, 2)
    engine.iterate()
    assert not engine.scheduler.reset_prefix_cache()
    assert engine.cache.phantoms.blocks
    engine.run()
    assert engine.scheduler.reset_prefix_cache()
    assert engine.cache.phantoms.blocks == set()
    assert [engine.serve(prompt), engine.serve([*prompt, 0])] == [0, 3 * chunk * block_size]
    assert engine.statistics.phantom_hit_tokens == 0


@both_loops
def test_a_lookup_that_waits_counts_nothing(asynchronous):
    engine, prompt = with_phantoms(4, 3, asynchronous=asynchronous)
    engine.add("holder", 4 * (engine.usable - 9), 5, priority=0)
    engine.iterate()
    engine.add("waits", [*prompt, 0], priority=1)
    for _ in range(2):
        assert "waits" not in shape(engine.iterate())
    assert engine.statistics.phantom_hit_tokens == 0
    engine.run()


class SlotLedger:
    """Knows, from the executed steps alone, which blocks are filled to their last slot."""

    def __init__(self, engine):
        self.block_size = engine.scheduler.config.block_size
        self.filled = {}
        allocate = engine.pool.allocate

        def forgetting(count):
            taken = allocate(count)
            self.filled.update((block, set()) for block in taken)
            return taken

        engine.pool.allocate = forgetting

    def execute(self, step):
        for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
            for position in range(start, start + num_tokens):
                block = request.block_tables[0][position // self.block_size]
                self.filled[block].add(position % self.block_size)

    def is_full(self, block):
        return len(self.filled[block]) == self.block_size


@examples(250)
@given(
    block_size=st.sampled_from([1, 2, 4]),
    usable=st.integers(6, 20),
    strict=st.booleans(),
    asynchronous=st.booleans(),
    budget=st.sampled_from([5, 8, 16, 64]),
    threshold=st.sampled_from([0, 3, 8]),
    policy=st.sampled_from(["priority", "priority", "fcfs"]),
    requests=st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 24), st.integers(1, 6), st.integers(0, 3), st.integers(0, 5)),
        min_size=3,
        max_size=12,
    ),
)
def test_who_is_served_what_nobody_computed(
    block_size, usable, strict, asynchronous, budget, threshold, policy, requests
):
    """Never anybody by default; strictly, the phantom tokens served are those counted, and only with priorities."""
    engine = Engine(
        usable,
        block_size=block_size,
        vllm_strict=strict,
        async_scheduling=asynchronous,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        scheduling_policy=policy,
    )
    ledger = SlotLedger(engine)
    documents = [list(range(100)), list(range(100, 200))]
    longest = usable * block_size
    to_come = sorted(enumerate(requests), key=lambda entry: entry[1][4])
    served = now = 0
    while to_come or engine.core.has_work():
        while to_come and to_come[0][1][4] <= now:
            index, (document, length, max_tokens, priority, _) = to_come.pop(0)
            prompt = documents[document][: min(length, longest)]
            room = longest + 1 - len(prompt)
            engine.add(str(index), prompt, min(max_tokens, room), priority=priority)
        now += 1
        assert now < 3_000
        step = engine.core.schedule_next()
        if step is not None:
            ledger.execute(step)
            for admission in step.admitted:
                hit = admission.block_tables[0][: admission.num_hit_tokens // block_size]
                served += block_size * sum(not ledger.is_full(block) for block in hit)
        if engine.core.must_collect():
            engine.core.process([[0] if samples else [] for samples in engine.core.in_flight[0].samples])
        engine.checker.check()
    if strict:
        assert served == engine.statistics.phantom_hit_tokens
    else:
        assert served == 0
    if policy == "fcfs":
        assert engine.statistics.phantom_hit_tokens == 0
