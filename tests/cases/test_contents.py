"""Every request reads its own prefix and nothing else, whatever is shared, evicted, preempted, swapped and offloaded.

The executor of these tests moves contents through the device's and the host's blocks; the last tests break something
on purpose and must be noticed.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from kvtwin.engine.block_keys import TokenContent
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.host_memory.host_pool import HostPool
from kvtwin.engine.host_memory.swap_space import SwapSpace
from kvtwin.engine.invariants import InvariantChecker
from kvtwin.engine.kv_cache_manager import KVCacheManager
from kvtwin.engine.request import FinishReason, Request
from kvtwin.engine.scheduler import Scheduler
from kvtwin.engine.speculation import Speculation
from tests.cases.content_executor import NUM_TOKENS, ContentError, ContentExecutor, Prefix
from tests.parts import slow_but

EOS = 0
INFINITE = 700

MEMORIES = {
    "recompute": {},
    "swap": {"preemption_mode": "swap", "num_swap_blocks": INFINITE},
    "small swap": {"preemption_mode": "swap", "num_swap_blocks": 4},
    "offload": {"num_offload_blocks": INFINITE},
    "small offload": {"num_offload_blocks": 7},
    "both": {"preemption_mode": "swap", "num_swap_blocks": 12, "num_offload_blocks": 11},
}

GROUPS = {
    "full": (CacheGroupSpec("full_attention", 4),),
    "window": (CacheGroupSpec("sliding_window", 4, 9),),
    "hybrid": (CacheGroupSpec("full_attention", 4), CacheGroupSpec("sliding_window", 4, 6)),
    "two sizes": (CacheGroupSpec("full_attention", 2), CacheGroupSpec("sliding_window", 4, 7)),
    "chunks": (CacheGroupSpec("full_attention", 4), CacheGroupSpec("chunked_local_attention", 4, 8)),
    "full and states": (CacheGroupSpec("full_attention", 4), CacheGroupSpec("mamba", 4), CacheGroupSpec("mamba", 4)),
    "all": (CacheGroupSpec("mamba", 4), CacheGroupSpec("sliding_window", 4, 6), CacheGroupSpec("full_attention", 4)),
}


@dataclass(frozen=True)
class Arrival:
    turn: int
    prompt: list[int]
    max_tokens: int
    root: int
    stops: bool
    priority: int
    n: int = 1
    """Samples of the prompt."""
    session: str | None = None


RETENTIONS = ("lru", "pin", "pin-until-pressure", "ttl=5e-9", "ttl=20e-9")
"""An iteration is a nanosecond."""


@dataclass(frozen=True)
class Interruption:
    """An abort of request number ``abort``, or a reset of the prefix cache because the weights change."""

    turn: int
    abort: int | None
    forced: bool


def crowd(seed, groups, *, interrupted=True, caches=False):
    """Configuration and workload number ``seed``: requests with shared prefixes that nearly all fit, alone.

    ``caches`` turns prefix caching on in all of them.
    """
    rng = random.Random(seed)
    block_size = min(spec.block_size for spec in groups)
    usable = rng.randint(8, 16) * len(groups)
    room = usable // len(groups) * block_size
    batched = rng.choice((5, 8, 16, 64))
    config = {
        "num_blocks": usable + 1,
        "cache_groups": groups,
        "async_scheduling": rng.random() < 0.5,
        "scheduling_policy": rng.choice(("fcfs", "priority")),
        "max_num_batched_tokens": batched,
        "max_num_seqs": min(batched, rng.choice((3, 8))),
        "enable_prefix_caching": rng.random() < 0.85 or caches,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "watermark": rng.choice((0.0, 0.0, 0.1)),
        "max_model_len": 100,
        "prefix_cache_retention_interval": rng.choice((0, None)) if len(groups) > 1 else 0,
    }
    if not config["enable_prefix_caching"]:
        config["cache_groups"] = tuple(
            replace(spec, block_size=config["max_model_len"]) if spec.kind == "mamba" else spec for spec in groups
        )
    documents = [[rng.randrange(NUM_TOKENS) for _ in range(room)] for _ in range(3)]
    events = []
    for _ in range(rng.randint(6, 20)):
        prompt = rng.choice(documents)[: rng.randint(1, room * 2 // 3)]
        prompt = prompt + [rng.randrange(NUM_TOKENS) for _ in range(rng.randint(0, 3))]
        events.append(
            Arrival(
                turn=rng.choice((0, rng.randint(0, 30))),
                prompt=prompt,
                max_tokens=rng.randint(1, 15),
                root=rng.choice((1, 1, 1, 2)),
                stops=rng.random() < 0.3,
                priority=rng.randrange(3),
            )
        )
    if interrupted and rng.random() < 0.4:
        abort = rng.choice((None, rng.randrange(len(events))))
        events.append(Interruption(rng.randint(0, 40), abort, rng.random() < 0.7))
    return config, events


def mixture(seed, groups):
    """As in `crowd`, with several samples, sessions, aborts, and all else that can be set side by side."""
    rng = random.Random(-seed - 1)
    config, events = crowd(seed, groups)
    config |= MEMORIES[rng.choice(list(MEMORIES))] | {
        "retention": rng.choice(RETENTIONS),
        "long_prefill_token_threshold": rng.choice((0, 0, 5)),
        "prefill_schedule_interval": rng.choice((1, 1, 3)),
    }
    if not config["enable_prefix_caching"]:
        config |= {"retention": "lru", "num_offload_blocks": 0}
    kinds = {spec.kind for spec in groups}
    way = "prefix" if "mamba" in kinds else rng.choice(("prefix", "fork", "fork", "speculation"))
    if way == "speculation":
        config["speculation"] = Speculation(
            method=rng.choice(("ngram", "eagle", "draft_model")),
            num_speculative_tokens=rng.randint(1, 3),
            disable_lookahead_block_hashes="chunked_local_attention" not in kinds and rng.random() < 0.5,
        )
    else:
        config["parallel_sampling"] = way
    arrivals = [
        replace(event, n=rng.choice((1, 1, 2, 4)), session=rng.choice((None, "a", "b")))
        for event in events
        if isinstance(event, Arrival)
    ]
    number = sum(arrival.n for arrival in arrivals)
    aborts = [Interruption(rng.randint(0, 40), rng.randrange(number), False) for _ in range(rng.randint(0, 3))]
    return config, arrivals + aborts + [event for event in events if isinstance(event, Interruption)]


class ContentRun:
    """A workload served with real contents; invariants are checked after each iteration."""

    def __init__(self, config, events, **executor):
        engine_config = EngineConfig(**config)
        self.scheduler = Scheduler(engine_config)
        self.executor = ContentExecutor(engine_config, **executor)
        self.arrivals: dict[Request, Arrival] = {}
        self._sample_of: dict[Request, int] = {}
        self.steps = []
        self._num_drafts = engine_config.speculation.num_speculative_tokens if engine_config.speculation else 0
        self.was_reset = False
        self._core = EngineCore(self.scheduler)
        self._outputs = []
        checker = InvariantChecker(self.scheduler)
        to_come = sorted(events, key=lambda event: event.turn)
        turn = 0
        while to_come or self._core.has_work():
            if not self._core.has_work():
                turn = max(turn, to_come[0].turn)
            while to_come and to_come[0].turn <= turn:
                self._apply(to_come.pop(0))
            self.scheduler.retention.advance_to(turn)
            self._iterate(checker)
            turn += 1
            assert len(self.steps) < 3_000, "no end in sight"

    def _apply(self, event):
        if isinstance(event, Arrival):
            salt, parent = "other" if event.root == 2 else None, None
            for sample in range(event.n):
                request = Request(
                    str(len(self.arrivals)),
                    len(event.prompt),
                    event.max_tokens,
                    TokenContent(self.scheduler.keys, event.prompt, cache_salt=salt),
                    arrival_ns=len(self.arrivals),
                    priority=event.priority,
                    eos_token_id=EOS if event.stops else None,
                    session=event.session if parent is None else None,
                    parent=parent,
                )
                parent = parent or request
                self.arrivals[request] = event
                self._sample_of[request] = sample
                self.executor.expect(request, event.root, sample)
                self.scheduler.add_request(request)
        elif event.abort is not None:
            self.scheduler.abort(str(event.abort))
        elif self.scheduler.reset_prefix_cache(reset_running_requests=event.forced):
            self.executor.change_weights()
            self.was_reset = True

    def _iterate(self, checker):
        step = self._core.schedule_next()
        if step is not None:
            checker.check_step(step)
            self.steps.append(step)
            self._outputs.append(self.executor.submit(step))
        if self._core.must_collect():
            step = self._core.in_flight[0]
            self.executor.settle(step)
            self._core.process(self._outputs.pop(0), [self._num_drafts] * len(step.requests))
        checker.check()

    def check_outputs(self):
        """Each request said what it would have said alone."""
        for request, arrival in self.arrivals.items():
            alone = Prefix(arrival.root, arrival.prompt, self._sample_of[request])
            for _ in range(request.num_output_tokens):
                alone.sample()
            assert request.content.token_ids(0, request.num_tokens) == alone.tokens
            if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                stopped = arrival.stops and alone.tokens[-1] == EOS
                assert stopped or request.num_output_tokens == arrival.max_tokens

    @property
    def events(self):
        """How often things happened that a test wants to have seen."""
        cache, statistics = self.scheduler.kv_cache, self.scheduler.statistics
        counts = Counter(
            preempted=statistics.num_preemptions,
            recomputed=statistics.num_recomputed_tokens,
            evicted=cache.pool.num_evictions,
        )
        if cache.swap:
            counts["swapped out"] = cache.swap.pool.num_saved_blocks
            counts["swapped in"] = cache.swap.pool.num_loaded_blocks
            counts["fell back"] = cache.swap.num_fallbacks
        if cache.offload:
            counts["offloaded"] = cache.offload.pool.num_saved_blocks
            counts["loaded"] = cache.offload.pool.num_loaded_blocks
            counts["external hits"] = statistics.external_prefix_cache.hits
        return counts


@pytest.mark.parametrize("groups", slow_but(["all"], GROUPS))
@pytest.mark.parametrize("memory", slow_but(["recompute", "both"], MEMORIES))
def test_every_request_reads_its_own_prefix(memory, groups):
    seen = Counter()
    for seed in range(60):
        config, events = crowd(seed, GROUPS[groups], caches="offload" in memory or memory == "both")
        run = ContentRun(config | MEMORIES[memory], events)
        run.check_outputs()
        if memory == "swap" and not run.was_reset:
            assert run.scheduler.statistics.num_recomputed_tokens == 0
        seen += run.events
    wanted = {
        "recompute": ["recomputed"],
        "swap": ["swapped in"],
        "small swap": ["swapped in", "fell back", "recomputed"],
        "offload": ["external hits"],
        "small offload": ["external hits"],
        "both": ["swapped in", "external hits"],
    }[memory]
    assert all(seen[event] for event in ["preempted", "evicted", *wanted]), seen


@pytest.mark.parametrize("memory", slow_but(["both"], MEMORIES))
@pytest.mark.parametrize("method", slow_but(["eagle"], ["ngram", "eagle"]))
def test_rejected_drafts_are_never_read(memory, method):
    """Speculative decoding: some drafts are wrong, also those of requests that were preempted meanwhile."""
    seen = Counter()
    for seed in range(60):
        config, events = crowd(seed, GROUPS["full"])
        config |= {
            "enable_prefix_caching": True,
            "speculation": Speculation(method=method, num_speculative_tokens=1 + seed % 3),
        }
        run = ContentRun(config | MEMORIES[memory], events)
        run.check_outputs()
        if memory == "swap" and not run.was_reset:
            assert run.scheduler.statistics.num_recomputed_tokens == 0
        seen += run.events
    assert seen["preempted"], seen


@pytest.mark.slow
@pytest.mark.parametrize("groups", GROUPS)
def test_all_features_beside_one_another(groups):
    seen = Counter()
    for seed in range(80):
        config, events = mixture(seed, GROUPS[groups])
        run = ContentRun(config, events)
        run.check_outputs()
        cache, retention = run.scheduler.kv_cache, run.scheduler.retention
        retention.release_all()
        assert cache.pool.num_used_blocks == 0
        assert not cache.forks.unwritten
        seen += run.events
        seen["forks"] += run.scheduler.statistics.num_forks
        seen["pins given up"] += retention.num_forced_releases + retention.num_pressure_releases
    wanted = ["preempted", "swapped in", "fell back", "external hits", "pins given up"]
    if "states" not in groups and groups != "all":
        wanted.append("forks")
    assert all(seen[event] for event in wanted), seen


# ---------------------------------------------------------------- negative controls


def notices(memory, groups="full", **executor):
    """Whether a broken engine or executor reads what it must not, in some of the crowds."""
    for seed in range(200):
        config, events = crowd(seed, GROUPS[groups], caches=True)
        try:
            ContentRun(config | MEMORIES[memory], events, **executor)
        except ContentError:
            return True
    return False


@pytest.mark.parametrize(
    ("memory", "order"),
    [
        ("swap", ("load", "copy", "write", "read")),
        ("offload", ("load", "copy", "write", "read")),
        ("swap", ("save", "copy", "write", "read")),
        ("offload", ("save", "copy", "write", "read")),
        ("swap", ("load", "copy", "write", "save", "read")),
        ("offload", ("load", "save", "copy", "write", "read")),
        (
            "swap",
            ("save", "copy", "write", "load", "read"),
        ),  # offloaded blocks are full: nothing more is written to them
    ],
)
def test_another_order_is_noticed(memory, order):
    assert notices(memory, order=order)


def test_host_blocks_overwritten_before_they_are_read_are_noticed(monkeypatch):
    monkeypatch.setattr(HostPool, "is_read", lambda *_: False)
    monkeypatch.setattr(HostPool, "free", lambda pool, blocks: pool._free.extend(blocks))
    assert notices("small offload")


def test_an_exchanged_table_entry_is_noticed(monkeypatch):
    find = SwapSpace.find

    def exchanged(*args):
        tables, num_tokens, loads = find(*args)
        if len(loads) > 1:
            first, second, *rest = loads
            loads = [first._replace(host_block=second.host_block), second._replace(host_block=first.host_block), *rest]
        return tables, num_tokens, loads

    monkeypatch.setattr(SwapSpace, "find", exchanged)
    assert notices("swap")


def test_stored_phantoms_are_noticed(monkeypatch):
    """The step of request 3 is rolled back for request 4; its blocks are evicted by request 5; 6 looks for them."""
    prompt = list(range(100, 136))
    config = {
        "num_blocks": 14,
        "block_size": 4,
        "scheduling_policy": "priority",
        "long_prefill_token_threshold": 12,
        "async_scheduling": False,
    }
    events = [Arrival(0, [index], 3, 1, False, 0) for index in range(3)]
    events += [Arrival(0, prompt, 1, 1, False, 5), Arrival(1, [50, 51, 52, 53], 3, 1, False, 0)]
    events += [Interruption(3, 3, False), Arrival(10, list(range(200, 252)), 1, 1, False, 0)]
    events += [Arrival(20, [*prompt, 0], 1, 1, False, 0)]
    run = ContentRun(config | MEMORIES["offload"], events)
    run.check_outputs()
    assert run.scheduler.statistics.external_prefix_cache.hits == 24
    monkeypatch.setattr(KVCacheManager, "mark_phantoms", lambda *_: None)
    with pytest.raises(ContentError):
        ContentRun(config | MEMORIES["offload"], events)


def test_contents_kept_over_a_change_of_weights_are_noticed(monkeypatch):
    monkeypatch.setattr(SwapSpace, "clear", lambda _: None)  # the device's cache is reset all the same
    assert notices("swap")


def test_a_hit_on_a_state_that_is_not_written_yet_is_noticed(monkeypatch):
    monkeypatch.setattr(KVCacheManager, "must_wait", lambda *_: False)
    assert notices("recompute", "full and states")
