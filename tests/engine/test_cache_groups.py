"""Cache groups that forget: what their lookup needs, keeps and lets go, beside the parity cases."""

from __future__ import annotations

import random

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.invariants import InvariantChecker
from kvtwin.engine.request import Request
from kvtwin.engine.scheduler import Scheduler
from tests.parts import slow_but

FULL = CacheGroupSpec("full_attention", 4)
WINDOW = CacheGroupSpec("sliding_window", 4, 9)
STATES = CacheGroupSpec("mamba", 4)


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


@pytest.mark.parametrize("seed", slow_but([0, 1], range(8)))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_window_that_never_ends_is_full_attention(seed, asynchronous):
    """With every tail kept, a window longer than any request decides as full attention does."""
    options = {"num_blocks": 60, "max_model_len": 128, "async_scheduling": asynchronous}
    endless = CacheGroupSpec("sliding_window", 4, window_tokens=10_000)
    windows = engine(endless, prefix_cache_retention_interval=None, **options)
    # A hit of a window needs its whole tail, which for an endless window starts at block 0: a leading run.
    assert run(windows, workload(seed, 24)) == run(engine(FULL, **options), workload(seed, 24))


@pytest.mark.parametrize("seed", slow_but([0, 1], range(8)))
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "groups",
    [
        (CacheGroupSpec("sliding_window", 4, 9),),
        (FULL, CacheGroupSpec("sliding_window", 4, 9)),
        (FULL, CacheGroupSpec("sliding_window", 8, 20), CacheGroupSpec("sliding_window", 12, 20)),
        (FULL, CacheGroupSpec("chunked_local_attention", 4, 16)),
        (STATES,),
        (FULL, STATES, STATES),
        (STATES, WINDOW, FULL),
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


@pytest.mark.parametrize(
    ("groups", "settings", "message"),
    [
        ((CacheGroupSpec("rwkv", 4),), {}, "cache_groups: expected one of full_attention, .*, mamba, got rwkv"),
        ((CacheGroupSpec("full_attention", 0),), {}, "cache_groups: expected blocks of at least 1 token, got 0"),
        ((CacheGroupSpec("sliding_window", 4),), {}, "cache_groups: expected a sliding_window of at least 1 token"),
        ((CacheGroupSpec("sliding_window", 4, 0),), {}, "cache_groups: expected a sliding_window of at least 1 token"),
        ((CacheGroupSpec("mamba", 4, 9),), {}, "cache_groups: expected no window of mamba, got 9"),
        (
            (FULL, STATES),
            {"enable_prefix_caching": False},
            r"cache_groups: without prefix caching expected states in blocks of max_model_len \(8192\) tokens, got 4",
        ),
        (
            (FULL, CacheGroupSpec("chunked_local_attention", 4, 8), CacheGroupSpec("sliding_window", 8, 8)),
            {},
            "cache_groups: expected chunked local attention in blocks of 8 tokens",
        ),
        (
            (CacheGroupSpec("chunked_local_attention", 4, 6),),
            {},
            r"cache_groups: expected chunks of whole blocks \(4 tokens\), got 6",
        ),
        ((FULL,), {"prefix_match_unit": 2}, "prefix_match_unit: with one cache group expected its block size 4, got 2"),
        ((FULL, WINDOW), {"prefix_match_unit": 0}, "prefix_match_unit: expected at least 1, got 0"),
        ((FULL, WINDOW), {"prefix_match_unit": 3}, "prefix_match_unit: expected a divisor of .* 4, got 3"),
        ((FULL,), {"prefix_cache_retention_interval": 4}, "prefix_cache_retention_interval: expected 0 or None"),
        (
            (FULL, WINDOW),
            {"prefix_cache_retention_interval": 6},
            "prefix_cache_retention_interval: expected a multiple of 4",
        ),
        (
            (FULL, STATES),
            {"prefix_cache_retention_interval": -4},
            "prefix_cache_retention_interval: expected a multiple of 4",
        ),
    ],
)
def test_what_vllm_would_not_start_with_is_refused(groups, settings, message):
    with pytest.raises(ValueError, match=message):
        EngineConfig(num_blocks=100, cache_groups=groups, **settings)


# ---------------------------------------------------------------- state space


def chunks(core, request):
    """Tokens of ``request`` in each step, until it ends; and the most blocks held meanwhile."""
    core.scheduler.add_request(request)
    tokens, most = [], 0
    while core.has_work():
        step = core.schedule_next()
        if step is not None:
            tokens += step.num_tokens
        most = max(most, core.scheduler.kv_cache.pool.num_used_blocks)
        if core.must_collect():
            core.process([[5] if samples else [] for samples in core.in_flight[0].samples])
    return tokens, most


@pytest.mark.parametrize(
    ("prompt", "budget", "expected"),
    [
        (45, 16, [16, 16, 8, 5]),
        (48, 20, [16, 16, 8, 8]),
        (49, 100, [48, 1]),
        (30, 5, [5, 3, 5, 3, 5, 3, 5, 1]),
    ],
)
def test_chunks_end_where_a_state_is_worth_keeping(prompt, budget, expected):
    core = engine(CacheGroupSpec("mamba", 8), max_num_batched_tokens=budget, max_num_seqs=1)
    tokens, _ = chunks(core, Request("a", prompt, 1, TokenContent(core.scheduler.keys, range(prompt))))
    assert tokens == expected


@pytest.mark.parametrize("asynchronous", [False, True])
def test_only_states_in_use_are_held(asynchronous):
    core = engine(STATES, max_num_batched_tokens=8, num_blocks=6, async_scheduling=asynchronous)
    request = Request("a", 200, 60, TokenContent(core.scheduler.keys, range(200)))
    _, most = chunks(core, request)
    assert request.num_output_tokens == 60
    assert most == (3 if asynchronous else 2)


def test_without_prefix_caching_a_request_has_one_state():
    core = engine(CacheGroupSpec("mamba", 300), enable_prefix_caching=False, max_model_len=300, num_blocks=2)
    tokens, most = chunks(core, Request("a", 200, 60, TokenContent(core.scheduler.keys, range(200))))
    assert tokens == [64, 64, 64, 8] + [1] * 59
    assert most == 1


def test_a_state_is_hit_one_step_after_it_was_written():
    """Of two equal prompts, the second waits for the state of the first; full attention would not."""
    core = engine(FULL, STATES)
    for name in "ab":
        core.scheduler.add_request(Request(name, 21, 2, TokenContent(core.scheduler.keys, range(21))))
    hits = []
    for _ in range(2):
        step = core.schedule_next()
        hits.append([(one.request.request_id, one.num_hit_tokens) for one in step.admitted])
        core.process([[5] if samples else [] for samples in step.samples])
    assert hits == [[("a", 0)], [("b", 20)]]


def test_a_request_longer_than_the_pool_fits_in_its_window():
    """Only what lives at once has to fit: 400 tokens in 9 blocks of 4, window 8, 16 tokens a step."""
    core = engine(CacheGroupSpec("sliding_window", 4, 8), num_blocks=10, max_num_batched_tokens=16)
    request = Request("a", 400, 5, TokenContent(core.scheduler.keys, range(400)))
    core.scheduler.add_request(request)
    while core.has_work():
        core.schedule_next()
        core.process([[5] if samples else [] for samples in core.in_flight[0].samples])
    assert (str(request.finish_reason), request.num_output_tokens) == ("length", 5)


def test_a_block_has_a_second_key_for_the_part_at_the_prompts_end():
    """Prompt of 16, blocks of 8, hashes of 4: the second block is also cached as the part up to 12, until evicted."""
    core = engine(CacheGroupSpec("full_attention", 8), WINDOW, num_blocks=8)
    cache = core.scheduler.kv_cache
    request = Request("a", 16, 1, TokenContent(core.scheduler.keys, range(16)))
    core.scheduler.add_request(request)
    core.process([[5] for _ in core.schedule_next().requests])
    part, whole = cache.pool_keys(request, 0, None, 1)[2] - 1, cache.pool_keys(request, 0, None, 0)[1]
    assert cache.pool.blocks_with_key(part) == cache.pool.blocks_with_key(whole) == [2]
    cache.pool.allocate(7)
    assert cache.pool.num_cached_keys == 0
