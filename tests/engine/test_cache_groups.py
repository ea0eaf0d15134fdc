"""Cache groups that forget: what their lookup needs, keeps and lets go, beside the parity cases."""

from __future__ import annotations

import random

import pytest

from engine.block_keys import TokenContent
from engine.cache_group_spec import CacheGroupSpec
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.invariants import InvariantChecker
from engine.request import Request
from engine.scheduler import Scheduler

FULL = CacheGroupSpec("full_attention", 4)


def engine(*groups, **config):
    settings = {"num_blocks": 200, "max_num_batched_tokens": 64, "max_num_seqs": 8, "async_scheduling": False} | config
    return EngineCore(Scheduler(EngineConfig(cache_groups=groups, **settings)))


def workload(seed, number):
    rng = random.Random(seed)
    prefixes = [[rng.randrange(100) for _ in range(rng.randint(1, 40))] for _ in range(3)]
    return [
        (
            f"r{index}",
            rng.choice(prefixes) + [rng.randrange(100) for _ in range(rng.randint(1, 30))],
            rng.randint(1, 40),
        )
        for index in range(number)
    ]


def run(core, requests):
    """All decisions: per step who was scheduled, who was admitted with which hit, who was preempted."""
    scheduler, checker, decisions = core.scheduler, InvariantChecker(core.scheduler), []
    pending = list(requests)
    while pending or core.has_work():
        for name, tokens, output in pending[:2]:
            content = TokenContent(scheduler.keys, tokens)
            scheduler.add_request(Request(name, len(tokens), output, content, arrival_ns=len(decisions)))
        del pending[:2]
        step = core.schedule_next()
        if step is not None:
            decisions.append(
                (
                    [
                        (request.request_id, count)
                        for request, count in zip(step.requests, step.num_tokens, strict=True)
                    ],
                    [(one.request.request_id, one.num_hit_tokens) for one in step.admitted],
                    [request.request_id for request in step.preempted],
                )
            )
        if core.must_collect():
            core.process([[5] if samples else [] for samples in core.in_flight[0].samples])
        checker.check()
    assert scheduler.kv_cache.pool.num_used_blocks == 0
    return decisions


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_window_that_never_ends_is_full_attention(seed, asynchronous):
    """With every tail kept, a window longer than any request decides as full attention does."""
    options = {"num_blocks": 60, "max_model_len": 128, "async_scheduling": asynchronous}
    endless = CacheGroupSpec("sliding_window", 4, window_tokens=10_000)
    windows = engine(endless, prefix_cache_retention_interval=None, **options)
    # A hit of a window needs its whole tail, which for an endless window starts at block 0: a leading run.
    assert run(windows, workload(seed, 24)) == run(engine(FULL, **options), workload(seed, 24))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "groups",
    [
        (CacheGroupSpec("sliding_window", 4, 9),),
        (FULL, CacheGroupSpec("sliding_window", 4, 9)),
        (FULL, CacheGroupSpec("sliding_window", 8, 20), CacheGroupSpec("sliding_window", 12, 20)),
        (FULL, CacheGroupSpec("chunked_local_attention", 4, 16)),
    ],
)
def test_invariants_hold_and_everything_ends(groups, seed, asynchronous):
    core = engine(*groups, num_blocks=90, max_model_len=128, async_scheduling=asynchronous)
    requests = workload(seed, 24)
    run(core, requests)
    ended = core.scheduler.take_ended()
    assert sorted(request.request_id for request in ended) == sorted(name for name, _, _ in requests)


@pytest.mark.parametrize("window", [1, 4, 5, 9, 16])
def test_a_window_group_holds_no_more_than_its_window(window):
    core = engine(CacheGroupSpec("sliding_window", 4, window), max_num_batched_tokens=8)
    scheduler = core.scheduler
    request = Request("a", 100, 60, TokenContent(scheduler.keys, range(100)))
    scheduler.add_request(request)
    most = 0
    while core.has_work():
        core.schedule_next()
        most = max(most, scheduler.kv_cache.pool.num_used_blocks)
        core.process([[5] if samples else [] for samples in core.in_flight[0].samples])
    assert request.num_output_tokens == 60
    assert most <= -(-(window - 1 + 8) // 4) + 1


def test_parts_of_blocks_cannot_be_hit_yet():
    with pytest.raises(ValueError, match="cache_groups: expected blocks of full attention as large as a hash covers"):
        engine(CacheGroupSpec("full_attention", 8), CacheGroupSpec("sliding_window", 4, 9))


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match=r"cache group: expected one of full_attention, .* got mamba"):
        engine(CacheGroupSpec("mamba", 4))


def test_a_request_longer_than_the_pool_fits_in_its_window():
    """Only what lives at once has to fit: 400 tokens in 9 blocks of 4, window 8, 16 tokens a step."""
    core = engine(CacheGroupSpec("sliding_window", 4, 8), num_blocks=10, max_num_batched_tokens=16)
    request = Request("a", 400, 5, TokenContent(core.scheduler.keys, range(400)))
    core.scheduler.add_request(request)
    while core.has_work():
        core.schedule_next()
        core.process([[5] if samples else [] for samples in core.in_flight[0].samples])
    assert (str(request.finish_reason), request.num_output_tokens) == ("length", 5)
