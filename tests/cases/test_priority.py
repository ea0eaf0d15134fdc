"""D8: a victim that is in the step already is taken out of it again (vllm#23347, vllm#23713, vllm#21528)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.request import RequestStatus
from tests.cases.engine_harness import Engine, shape
from tests.parts import examples


def test_the_reported_steps():
    engine = Engine(9, scheduling_policy="priority", max_num_batched_tokens=64, long_prefill_token_threshold=32)
    engine.add("low", 128, priority=5)
    assert shape(engine.iterate()) == {"low": 64}
    engine.add("high", 16, 3, priority=0)
    assert shape(engine.iterate()) == {"low": 32, "high": 16}
    step = engine.core.schedule_next()
    assert shape(step) == {"high": 1}
    assert [request.request_id for request in step.preempted] == ["low"]
    assert step.total_tokens == 1
    assert engine.pool.num_free_blocks == 7
    assert engine.requests["low"].num_computed_tokens == 0


@examples(150)
@given(
    usable=st.integers(12, 30),
    requests=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 8), st.integers(0, 3), st.integers(0, 6)),
        min_size=2,
        max_size=8,
    ),
    asynchronous=st.booleans(),
    threshold=st.sampled_from([0, 4, 7]),
    budget=st.sampled_from([8, 13, 64]),
)
def test_a_step_is_consistent_after_every_roll_back(usable, requests, asynchronous, threshold, budget):
    engine = Engine(
        usable,
        block_size=4,
        scheduling_policy="priority",
        async_scheduling=asynchronous,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
    )
    to_come = sorted(enumerate(requests), key=lambda entry: entry[1][3])
    for now in range(2_000):
        while to_come and to_come[0][1][3] <= now:
            index, (prompt, max_tokens, priority, _) = to_come.pop(0)
            engine.add(str(index), prompt, max_tokens, priority=priority)
        if not engine.core.has_work() and not to_come:
            break
        step = engine.iterate()
        if step is None:
            continue
        assert not set(step.preempted) & set(step.requests), "both scheduled and preempted"
        assert not {request for request, _ in step.new_blocks} - set(step.requests)
        assert sum(step.num_tokens) == step.total_tokens <= budget
        lengths = {len(step.requests), len(step.num_tokens), len(step.num_computed_tokens), len(step.samples)}
        assert len(lengths) == 1
        for request, start in zip(step.requests, step.num_computed_tokens, strict=True):
            assert 0 <= start < request.num_tokens + request.num_placeholders
    assert all(request.is_finished for request in engine.requests.values())


def test_a_victim_that_stands_before_makes_nobody_miss_the_step():
    engine = Engine(7, block_size=4, scheduling_policy="priority")
    engine.add("low", 7, 9, priority=5)
    engine.iterate()
    engine.add("middle", 8, 9, priority=3)
    engine.add("high", 8, 9, priority=1)
    assert shape(engine.iterate()) == {"low": 1, "high": 8, "middle": 8}
    step = engine.iterate()
    assert [request.request_id for request in step.preempted] == ["low"]
    assert shape(step) == {"high": 1, "middle": 1}


def test_a_requester_that_is_its_own_victim_makes_nobody_miss_the_step():
    """Everybody behind it is more important, and is served with what it gave back."""
    engine = Engine(6, block_size=4, scheduling_policy="priority")
    engine.add("low", 7, 9, priority=5)
    engine.iterate()
    engine.add("middle", 8, 9, priority=3)
    engine.add("high", 8, 9, priority=1)
    engine.iterate()
    step = engine.iterate()
    assert [request.request_id for request in step.preempted] == ["low"]
    assert shape(step) == {"high": 1, "middle": 1}


def three(priorities, arrivals=(0, 1, 2), **config):
    """Three requests that each hold two blocks of four slots; each needs another one next, and one is left."""
    engine = Engine(7, block_size=4, scheduling_policy="priority", **config)
    order = sorted(range(3), key=lambda index: (priorities[index], arrivals[index]))
    for index in order:
        engine.add("abc"[index], 8, 9, priority=priorities[index], arrival_ns=arrivals[index])
    engine.iterate()
    assert len(engine.scheduler.running) == 3
    return engine


@pytest.mark.parametrize(
    ("priorities", "arrivals", "victim"),
    [
        ((0, 0, 1), (0, 1, 2), "c"),
        ((0, 1, 1), (0, 2, 1), "b"),
        ((5, 1, 1), (0, 1, 2), "a"),
        ((-3, -2, -1), (9, 8, 7), "c"),
    ],
)
def test_the_victim_is_the_least_important_and_of_those_the_latest(priorities, arrivals, victim):
    engine = three(priorities, arrivals)
    step = engine.iterate()
    assert step.preempted[0].request_id == victim


def test_of_equals_the_first_in_the_list_is_the_victim():
    engine = three((1, 1, 1), (0, 0, 0))
    assert engine.iterate().preempted[0].request_id == "a"


def test_the_waiting_are_served_by_priority_then_arrival():
    engine = Engine(64, scheduling_policy="priority", max_num_seqs=1)
    for name, priority in zip("abcde", (3, 1, 2, 1, -1), strict=True):
        engine.add(name, 4, priority=priority)
    engine.run()
    assert [step.admitted[0].request.request_id for step in engine.steps if step.admitted] == list("ebdca")


def test_an_important_request_that_waits_preempts_nobody():
    engine = Engine(4, block_size=4, scheduling_policy="priority")
    engine.add("unimportant", 12, 4, priority=9)
    engine.iterate()
    important = engine.add("important", 8, 2, priority=0)
    for _ in range(3):
        assert shape(engine.iterate()) == {"unimportant": 1}
        assert important.status is RequestStatus.WAITING
    engine.run()
    assert engine.statistics.num_preemptions == 0


def test_a_preempted_request_keeps_its_place_by_arrival():
    engine = three((0, 0, 0))
    engine.add("d", 1, priority=0)
    assert [request.request_id for request in engine.iterate().preempted] == ["c"]
    waiting = [request.request_id for request in engine.scheduler.waiting]
    assert waiting == ["c", "d"]
