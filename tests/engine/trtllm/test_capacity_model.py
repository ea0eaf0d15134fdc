"""The small capacity model against what ``capacitySchedulerTest.cpp`` of NVIDIA/TensorRT-LLM expects."""

from itertools import groupby

import pytest

from tests.engine.trtllm.capacity_model import GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH, Job, run
from tests.engine.trtllm.capacity_operations import random_capacity_case

ALL = [GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH]


def periods(iterations):
    """Who runs, each with the iteration from which on they do, and the number of iterations at last."""
    found, now = [], 0
    for running, group in groupby(sorted(running) for running, _ in iterations):
        found.append((now, running))
        now += len(list(group))
    return [*found, now]


def two(prompt_tokens, max_new_tokens, chunk_tokens=None):
    return [Job(prompt_tokens, max_new_tokens, chunk_tokens=chunk_tokens) for _ in range(2)]


@pytest.mark.parametrize("policy", ALL)
def test_both_fit(policy):
    assert periods(run(two(10, 80), 20, 10, policy, 2)) == [(0, [0, 1]), 80]
    assert periods(run(two(50, 40, 20), 20, 10, policy, 2)) == [(0, [0, 1]), 42]


@pytest.mark.parametrize(
    ("jobs", "policy", "expected"),
    [
        (two(10, 80), MAX_UTILIZATION, [(0, [0, 1]), (41, [0]), (80, [1]), 119]),
        (two(10, 80), GUARANTEED_NO_EVICT, [(0, [0]), (80, [1]), 160]),
        (two(30, 60, 20), MAX_UTILIZATION, [(0, [0, 1]), (22, [0]), (61, [1]), 100]),
        (two(30, 60, 20), GUARANTEED_NO_EVICT, [(0, [0]), (61, [1]), 122]),
        (two(70, 20, 40), MAX_UTILIZATION, [(0, [0]), (21, [1]), 42]),
        (
            [Job(10, 80, draft_tokens=5), Job(10, 80, draft_tokens=10)],
            MAX_UTILIZATION,
            [(0, [0, 1]), (31, [0]), (80, [1]), 129],
        ),
        (
            [Job(10, 80), Job(10, 80, priority=0.6)],
            MAX_UTILIZATION,
            [(0, [0, 1]), (41, [1]), (80, [0]), 119],
        ),
    ],
)
def test_both_do_not_fit(jobs, policy, expected):
    assert periods(run(jobs, 10, 10, policy, 2)) == expected


def four(*priorities):
    """Two at first, two at iteration 10."""
    return [Job(10, 80, 10 * (index >= 2), priority) for index, priority in enumerate(priorities)]


def test_two_more_arrive():
    assert periods(run(four(0.5, 0.5, 0.5, 0.5), 10, 10, MAX_UTILIZATION, 4)) == [
        (0, [0, 1]),
        (10, [0, 1, 2, 3]),
        (21, [0, 1]),
        (41, [0]),
        (80, [1, 2]),
        (90, [1]),
        (119, [2, 3]),
        (139, [2]),
        (178, [3]),
        227,
    ]


def test_two_more_arrive_that_come_first():
    assert periods(run(four(0.5, 0.5, 0.6, 0.7), 10, 10, MAX_UTILIZATION, 4)) == [
        (0, [0, 1]),
        (10, [0, 1, 2, 3]),
        (21, [0, 2, 3]),
        (31, [2, 3]),
        (51, [3]),
        (90, [2]),
        (129, [0, 1]),
        (139, [0]),
        (178, [1]),
        227,
    ]


def test_two_more_arrive_and_nobody_is_paused():
    iterations = run(four(0.5, 0.5, 0.5, 0.5), 10, 10, GUARANTEED_NO_EVICT, 4)
    assert periods(iterations) == [(0, [0]), (80, [1]), (160, [2]), (240, [3]), 320]
    jobs = [Job(30, 60, 10 * (index >= 2), chunk_tokens=20) for index in range(4)]
    assert periods(run(jobs, 10, 10, GUARANTEED_NO_EVICT, 4)) == [(0, [0]), (61, [1]), (122, [2]), (183, [3]), 244]


def test_those_that_come_first_take_the_place_of_those_that_run():
    jobs = [Job(10, 10), Job(10, 10), Job(10, 10, 2, 0.6), Job(10, 10, 2, 0.7)]
    iterations = run(jobs, 10, 10, MAX_UTILIZATION, 2)
    assert periods(iterations) == [(0, [0, 1]), (2, [2, 3]), (12, [0, 1]), 20]
    assert iterations[2] == ([3, 2], [1, 0])


def test_order_is_by_priority_then_by_arrival():
    priorities = [0.5, 0.5, 0.6, 0.6, 0.6, 1.0, 0.3, 0.3, 0.3, 0.6, 1.0, 0.5]
    jobs = [Job(1, 1, priority=priority) for priority in priorities]
    assert run(jobs, 100, 10, MAX_UTILIZATION, 100) == [([5, 10, 2, 3, 4, 9, 0, 1, 11, 6, 7, 8], [])]


def test_a_static_batch_ends_before_the_next_one_begins():
    jobs = [Job(10, 80), Job(10, 40), Job(10, 80)]
    assert periods(run(jobs, 20, 10, STATIC_BATCH, 2)) == [(0, [0, 1]), (40, [0]), (80, [2]), 160]


@pytest.mark.parametrize("policy", ALL)
def test_duplicates_wait(policy):
    jobs = [Job(21, 2, tokens=range(21)) for _ in range(3)]
    at_once, waiting = [(0, [0, 1, 2]), 2], [(0, [0]), (1, [0, 1, 2]), (2, [1, 2]), 3]
    assert periods(run(jobs, 20, 10, policy, 3)) == (at_once if policy == STATIC_BATCH else waiting)


@pytest.mark.parametrize("policy", [GUARANTEED_NO_EVICT, MAX_UTILIZATION])
def test_others_do_not_wait_for_a_duplicate(policy):
    jobs = [Job(21, 2, tokens=range(first, first + 21)) for first in (0, 0, 1)]
    assert periods(run(jobs, 20, 10, policy, 3)) == [(0, [0, 2]), (1, [0, 1, 2]), (2, [1]), 3]


@pytest.mark.parametrize("policy", [GUARANTEED_NO_EVICT, MAX_UTILIZATION])
def test_duplicates_wait_for_the_last_chunk(policy):
    jobs = [Job(50, 40, chunk_tokens=20, tokens=range(50)) for _ in range(2)]
    assert periods(run(jobs, 20, 10, policy, 2)) == [(0, [0]), (3, [0, 1]), (42, [1]), 43]


@pytest.mark.parametrize("policy", [GUARANTEED_NO_EVICT, MAX_UTILIZATION])
def test_five_of_which_three_begin_alike(policy):
    starts_and_lengths = [(1, 11), (2, 21), (0, 11), (0, 21), (0, 31)]
    jobs = [Job(length, 80, tokens=range(start, start + length)) for start, length in starts_and_lengths]
    iterations = run(jobs, 100, 10, policy, 5)
    assert periods(iterations) == [
        (0, [0, 1, 2]),
        (1, [0, 1, 2, 3]),
        (2, [0, 1, 2, 3, 4]),
        (80, [3, 4]),
        (81, [4]),
        82,
    ]


@pytest.mark.parametrize("policy", ALL)
def test_one_that_never_fits(policy):
    with pytest.raises(ValueError, match=r"none of \[0\]"):
        run([Job(200, 1)], 10, 10, policy, 2)


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("seed", range(10))
def test_all_end_and_each_generates_what_it_should(policy, seed, duplicates):
    case = random_capacity_case(seed, duplicates)
    wanted = [job.prompt_tokens + job.max_new_tokens for job in case.jobs]
    arrivals = [job.arrival_iteration for job in case.jobs]
    iterations = run(case.jobs, case.num_blocks, case.tokens_per_block, policy, case.max_running)
    assert [job.prompt_tokens + job.generated_tokens for job in case.jobs] == wanted
    for now, (running, paused) in enumerate(iterations):
        assert len(running) <= case.max_running
        assert all(arrivals[job_id] <= now for job_id in running)
        assert not set(running) & set(paused)
        assert policy == MAX_UTILIZATION or not paused
