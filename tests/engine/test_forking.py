"""Forks of a request: blocks shared down to the last token, copied by the first who writes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from kvtwin.engine.block_keys import OpaqueContent, TokenContent
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.core import EngineCore
from kvtwin.engine.executor import Admission, BlockCopy, Step
from kvtwin.engine.forking import Forks
from kvtwin.engine.invariants import InvariantChecker, InvariantError
from kvtwin.engine.request import Request, RequestStatus
from kvtwin.engine.scheduler import Scheduler
from tests.cases.content_executor import ContentError, ContentExecutor
from tests.parts import slow_but

FULL = (CacheGroupSpec("full_attention", 4),)
GROUPS = {
    "full": FULL,
    "window": (CacheGroupSpec("sliding_window", 4, 6),),
    "full and window": (*FULL, CacheGroupSpec("sliding_window", 4, 7)),
    "large blocks beside small ones": (*FULL, CacheGroupSpec("sliding_window", 8, 9)),
    "parts of blocks": (CacheGroupSpec("full_attention", 8), CacheGroupSpec("sliding_window", 4, 7)),
    "chunks": (*FULL, CacheGroupSpec("chunked_local_attention", 4, 8)),
}


@dataclass
class Samples:
    """``n`` samples of a prompt that arrive before iteration ``turn``."""

    turn: int
    prompt: list[int]
    n: int
    max_tokens: int
    priority: int = 0


class ForkRun:
    """Prompts sampled until everything is done, by an executor that checks what is read."""

    def __init__(self, prompts, *, usable=500, disturb=None, check=True, **config):
        settings = {"cache_groups": FULL, "max_num_batched_tokens": 256, "max_num_seqs": 64, "max_model_len": 500}
        self.scheduler = Scheduler(EngineConfig(num_blocks=usable + 1, **(settings | config)))
        self.core = EngineCore(self.scheduler)
        self.cache = self.scheduler.kv_cache
        self.executor = ContentExecutor(self.scheduler.config)
        self.checker = InvariantChecker(self.scheduler) if check else None
        self.requests: dict[str, Request] = {}
        self.steps, self.used_blocks, results = [], [], []
        to_come, turn = list(enumerate(prompts)), 0
        while to_come or self.core.has_work():
            for number, prompt in [each for each in to_come if each[1].turn <= turn]:
                self._send(number, prompt)
            to_come = [each for each in to_come if each[1].turn > turn]
            if disturb:
                disturb(self, turn)
            step = self.core.schedule_next()
            if step is not None:
                self.steps.append(step)
                if self.checker:
                    self.checker.check_step(step)
                self._check_tables(step)
                results.append(self.executor.submit(step))
                self.used_blocks.append(self.cache.pool.num_used_blocks)
            if self.core.must_collect():
                self.executor.settle(self.core.in_flight[0])
                self.core.process(results.pop(0))
            if self.checker:
                self.checker.check()
            turn += 1
            assert turn < 5_000, "no end in sight"

    def _send(self, number, prompt):
        first = None
        for index in range(prompt.n):
            request = Request(
                f"{index}_{number}",
                len(prompt.prompt),
                prompt.max_tokens,
                TokenContent(self.scheduler.keys, prompt.prompt),
                arrival_ns=prompt.turn,
                priority=prompt.priority,
                parent=first,
            )
            first = first or request
            self.executor.expect(request, root=1, sample=index)
            self.scheduler.add_request(request)
            self.requests[request.request_id] = request

    def _check_tables(self, step):
        """Few blocks are held: at most those of whole prompts once, and each running request's own behind them."""
        size = self.cache.groups[0].block_size
        if len(self.cache.groups) > 1 or self.cache.groups[0].forgets:
            return
        families: dict[Request, list[Request]] = {}
        for request in self.scheduler.running:
            families.setdefault(request.parent or request, []).append(request)
        forked = {one.request for step in self.steps for one in step.admitted if one.is_fork}
        for parent, members in families.items():
            if parent.num_preemptions or not all(one is parent or one in forked for one in members):
                continue
            if any(one.num_preemptions for one in members):
                continue
            shared = (parent.num_prompt_tokens - 1) // size
            held = {block for one in members for block in one.block_tables[0]}
            alone = sum(max(0, len(one.block_tables[0]) - shared) for one in members)
            assert len(held) <= shared + alone

    @property
    def num_forks(self):
        return self.scheduler.statistics.num_forks

    def outputs(self):
        return {
            name: request.content.token_ids(request.num_prompt_tokens, request.num_tokens)
            for name, request in self.requests.items()
        }


def crowd(seed, *, groups=FULL):
    """Configuration and prompts number ``seed``: more samples than fit at once."""
    rng = random.Random(seed)
    usable = rng.randint(12, 24) * len(groups)
    config = {
        "usable": usable,
        "cache_groups": groups,
        "async_scheduling": rng.random() < 0.5,
        "scheduling_policy": rng.choice(("fcfs", "priority")),
        "max_num_batched_tokens": rng.choice((6, 16, 64)),
        "max_num_seqs": rng.choice((3, 6)),
        "enable_prefix_caching": rng.random() < 0.6,
        "watermark": rng.choice((0.0, 0.0, 0.1)),
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "long_prefill_token_threshold": rng.choice((0, 0, 5)),
        "prefill_schedule_interval": rng.choice((1, 1, 3)),
    }
    prompts = [
        Samples(
            turn=rng.randint(0, 12),
            prompt=[rng.randrange(3) for _ in range(rng.randint(1, 25))],
            n=rng.randint(1, 5),
            max_tokens=rng.randint(1, 20),
            priority=rng.randrange(2),
        )
        for _ in range(rng.randint(1, 5))
    ]
    return config, prompts


def admissions(run):
    """Name, hit and whether it was a fork, of every admission in order."""
    return [(one.request.request_id, one.num_hit_tokens, one.is_fork) for step in run.steps for one in step.admitted]


# ---------------------------------------------------------------- what happens


def test_siblings_share_the_partial_block_until_they_write():
    """Six tokens in blocks of four: two blocks, of which the last is copied for all but the last who writes."""
    run = ForkRun([Samples(0, [1, 2, 3, 4, 5, 6], 3, 4)], parallel_sampling="fork", async_scheduling=False)
    assert admissions(run) == [("0_0", 0, False), ("1_0", 5, True), ("2_0", 5, True)]
    first, second = run.steps[:2]
    assert first.num_tokens == [6, 1, 1]
    assert first.samples == [True] * 3
    assert [one.block_tables for one in first.admitted] == [[[1, 2]]] * 3
    assert first.copies == []
    assert second.copies == [BlockCopy(0, 2, 3), BlockCopy(0, 2, 4)]
    assert [(one.request.request_id, one.position, one.block) for one in second.replaced_blocks] == [
        ("0_0", 1, 3),
        ("1_0", 1, 4),
    ]
    assert run.used_blocks[:2] == [2, 4]
    assert run.scheduler.statistics.num_block_copies == 2


def test_nothing_is_copied_where_the_prompt_fills_its_blocks():
    run = ForkRun([Samples(0, [1, 2, 3, 4], 3, 3)], parallel_sampling="fork", async_scheduling=False)
    assert run.num_forks == 2
    assert run.executor.num_copies == 0
    assert run.used_blocks[:2] == [1, 4]


def test_siblings_wait_for_a_prompt_in_chunks():
    run = ForkRun([Samples(0, [1] * 10, 2, 2)], parallel_sampling="fork", max_num_batched_tokens=4, max_num_seqs=4)
    assert [[request.request_id for request in step.requests] for step in run.steps[:3]] == [
        ["0_0"],
        ["0_0"],
        ["0_0", "1_0"],
    ]


def test_a_sibling_whose_parent_has_ended_is_an_ordinary_request():
    for caching, hit in ((True, 8), (False, 0)):
        run = ForkRun(
            [Samples(0, [1] * 10, 2, 3)], parallel_sampling="fork", max_num_seqs=1, enable_prefix_caching=caching
        )
        assert admissions(run) == [("0_0", 0, False), ("1_0", hit, False)]


def test_a_late_sibling_forks_from_what_the_parent_has_become():
    """The parent has filled the prompt's last block with outputs; the cache has it under a key: it is not written."""
    prompts = [Samples(0, [1] * 6, 2, 12), Samples(0, [2] * 6, 1, 4)]
    for asynchronous in (False, True):
        run = ForkRun(
            prompts, parallel_sampling="fork", max_num_seqs=2, async_scheduling=asynchronous, disturb=_first_two
        )
        assert ("1_0", 5, True) in admissions(run)
        assert run.executor.num_copies == 1


def _first_two(run, turn):
    """Let the second prompt go before the sibling of the first."""
    if turn == 0:
        run.scheduler.waiting.remove(run.requests["1_0"])
        run.scheduler.waiting.append(run.requests["1_0"])


def test_a_preempted_fork_is_an_ordinary_request():
    run = ForkRun([Samples(0, [1] * 6, 3, 12)], usable=7, parallel_sampling="fork")
    again = [one for step in run.steps for one in step.admitted if one.resumed]
    assert again
    assert not any(one.is_fork for one in again)


@pytest.mark.parametrize(("free", "forks"), [(1, 0), (2, 1), (3, 2), (4, 3)])
def test_admission_leaves_room_for_the_copies_to_come(free, forks):
    """Six tokens take two blocks; each further sample will take one, though it needs none when it starts."""
    run = ForkRun([Samples(0, [1] * 6, 4, 2)], usable=1 + free, parallel_sampling="fork")
    assert sum(one.is_fork for one in run.steps[0].admitted) == forks


def test_a_prompt_behind_forks_waits_for_their_copies_too():
    """Eight blocks: two are the prompt's, one will be a copy, five are for the next prompt, who needs six."""
    for length, admitted in ((20, True), (21, False)):
        prompts = [Samples(0, [1] * 6, 2, 2), Samples(0, [2] * length, 1, 1)]
        run = ForkRun(prompts, usable=8, parallel_sampling="fork")
        assert ("0_1" in [one.request.request_id for one in run.steps[0].admitted]) is admitted


def test_forks_leave_the_watermark_free():
    for watermark, forks in ((0.0, 3), (0.2, 2), (0.4, 1)):
        run = ForkRun([Samples(0, [1] * 6, 4, 2)], usable=5, watermark=watermark, parallel_sampling="fork")
        assert sum(one.is_fork for one in run.steps[0].admitted) == forks


def test_forks_look_nothing_up():
    run = ForkRun([Samples(0, [1] * 10, 4, 2)], parallel_sampling="fork")
    counts = run.scheduler.statistics.prefix_cache
    assert (counts.requests, counts.queries, counts.hits) == (1, 10, 0)


def test_samples_of_an_unknown_prompt_share_its_keys():
    scheduler = Scheduler(EngineConfig(num_blocks=20, block_size=4, parallel_sampling="fork", async_scheduling=False))
    parent = Request("0_a", 8, 3, OpaqueContent(scheduler.keys))
    child = Request("1_a", 8, 3, OpaqueContent(scheduler.keys), parent=parent)
    for request in (parent, child):
        scheduler.add_request(request)
    scheduler.schedule()
    assert child.block_keys == parent.block_keys != []
    InvariantChecker(scheduler).check()


@pytest.mark.parametrize("kind", ["mamba", "state_space"])
def test_kinds_that_cannot_fork_are_refused(kind):
    with pytest.raises(ValueError, match="parallel_sampling: expected prefix"):
        EngineConfig(num_blocks=9, cache_groups=(CacheGroupSpec(kind, 16),), parallel_sampling="fork")


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="parallel_sampling: expected one of prefix, fork"):
        EngineConfig(num_blocks=9, parallel_sampling="swap")


# ---------------------------------------------------------------- forks beside prefix sharing


@pytest.mark.parametrize("groups", slow_but(["parts of blocks"], GROUPS))
def test_both_ways_give_the_same_tokens(groups):
    """On small pools, with preemptions: each sample says what it says when nothing is shared."""
    forks = copies = preemptions = 0
    for seed in range(60):
        config, prompts = crowd(seed, groups=GROUPS[groups])
        forked = ForkRun(prompts, **config, parallel_sampling="fork")
        hit = ForkRun(prompts, **config)
        alone = ForkRun(prompts, **config | {"usable": 5_000, "enable_prefix_caching": False}, check=False)
        assert forked.outputs() == hit.outputs() == alone.outputs()
        assert not hit.executor.num_copies
        forks += forked.num_forks
        copies += forked.executor.num_copies
        preemptions += forked.scheduler.statistics.num_preemptions
    assert forks > 200
    assert copies > 100
    assert preemptions > 10


@pytest.mark.parametrize("groups", slow_but(["parts of blocks"], GROUPS))
@pytest.mark.parametrize("host", [{"preemption_mode": "swap", "num_swap_blocks": 60}, {"num_offload_blocks": 60}])
def test_forks_beside_host_memory(groups, host):
    """What was swapped out, or evicted to the host, comes back as it was: copies of the same step are in it or not."""
    forks = loads = 0
    for seed in range(40):
        config, prompts = crowd(seed, groups=GROUPS[groups])
        if "num_offload_blocks" in host:
            config["enable_prefix_caching"] = True
        run = ForkRun(prompts, **config, **host, parallel_sampling="fork")
        alone = ForkRun(prompts, **config | {"usable": 5_000, "enable_prefix_caching": False}, check=False)
        assert run.outputs() == alone.outputs()
        forks += run.num_forks
        loads += sum(len(step.loads) for step in run.steps)
    assert forks > 100
    assert loads > 5


def test_forks_of_a_parent_that_hits_what_the_step_fills():
    prompts = [Samples(0, [1] * 8 + [2], 1, 3), Samples(0, [1] * 8 + [3], 2, 3)]
    run = ForkRun(prompts, parallel_sampling="fork")
    assert admissions(run) == [("0_0", 0, False), ("0_1", 8, False), ("1_1", 8, True)]
    assert run.steps[0].num_tokens == [9, 1, 1]


@pytest.mark.parametrize("groups", slow_but(["parts of blocks"], GROUPS))
def test_aborts_and_resets(groups):
    for seed in range(40):
        config, prompts = crowd(seed, groups=GROUPS[groups])
        rng = random.Random(seed)

        def disturb(run, _turn, rng=rng):
            if rng.random() < 0.1 and run.requests:
                run.scheduler.abort(rng.choice(list(run.requests)))
            if rng.random() < 0.05:
                run.scheduler.reset_prefix_cache(reset_running_requests=True)

        run = ForkRun(prompts, **config, parallel_sampling="fork", disturb=disturb)
        full = ForkRun(prompts, **config | {"usable": 5_000}, check=False).outputs()
        for name, tokens in run.outputs().items():
            assert tokens == full[name][: len(tokens)]
        assert run.cache.pool.num_used_blocks == 0
        assert not run.cache.forks.unwritten


@pytest.mark.parametrize("caching", slow_but([True], [True, False]))
@pytest.mark.parametrize("asynchronous", [True, False])
def test_forks_hold_no_more_blocks_at_equal_progress(caching, asynchronous):
    """Where nothing binds, every sample is as far in one run as in the other, step by step."""
    for seed in range(40):
        _, prompts = crowd(seed)
        config = {"async_scheduling": asynchronous, "enable_prefix_caching": caching}
        forked, hit = ForkRun(prompts, **config, parallel_sampling="fork"), ForkRun(prompts, **config)
        assert [len(step.requests) for step in forked.steps] == [len(step.requests) for step in hit.steps]
        assert all(few <= many for few, many in zip(forked.used_blocks, hit.used_blocks, strict=True))
        if any(prompt.n > 1 for prompt in prompts):
            assert sum(forked.used_blocks) < sum(hit.used_blocks)


def test_one_sample_is_the_same_either_way():
    for seed in range(20):
        config, prompts = crowd(seed)
        for prompt in prompts:
            prompt.n = 1
        runs = [ForkRun(prompts, **config, parallel_sampling=way) for way in ("fork", "prefix")]
        assert runs[0].used_blocks == runs[1].used_blocks
        assert admissions(runs[0]) == admissions(runs[1])


# ---------------------------------------------------------------- the checks can fail


@pytest.mark.parametrize("asynchronous", [True, False])
def test_without_copies_memory_is_stale(monkeypatch, asynchronous):
    monkeypatch.setattr(Forks, "blocks_to_copy", lambda *_: [])
    prompts = [Samples(0, [1] * 6, 3, 4)]
    config = {"parallel_sampling": "fork", "async_scheduling": asynchronous}
    with pytest.raises(ContentError):
        ForkRun(prompts, **config, check=False)
    with pytest.raises(InvariantError, match="holds too"):
        ForkRun(prompts, **config)


def test_copies_that_are_not_carried_out_are_seen(monkeypatch):
    monkeypatch.setattr(ContentExecutor, "_copy", lambda *_: None)
    with pytest.raises(ContentError):
        ForkRun([Samples(0, [1] * 6, 3, 4)], parallel_sampling="fork")


# ---------------------------------------------------------------- beam search


@pytest.mark.parametrize("caching", slow_but([True], [True, False]))
@pytest.mark.parametrize("groups", slow_but(["parts of blocks"], GROUPS))
def test_beams_fork_grow_and_end_in_any_order(groups, caching):
    num_copies = 0
    for seed in range(25):
        num_copies += Beams(seed, GROUPS[groups], caching).search()
    assert num_copies > 50


class Beams:
    """Beams over a bare manager: each step some fork, some grow, some end, in any order."""

    def __init__(self, seed, groups, caching):
        self.rng = random.Random(seed)
        usable = self.rng.randint(12, 50) * len(groups)
        config = EngineConfig(
            num_blocks=usable + 1, cache_groups=groups, enable_prefix_caching=caching, async_scheduling=False
        )
        self.scheduler = Scheduler(config)
        self.cache = self.scheduler.kv_cache
        self.executor = ContentExecutor(config)
        self.checker = InvariantChecker(self.scheduler)
        self.number = self.num_steps = 0

    def search(self):
        self.start()
        for _ in range(150):
            act = self.rng.choice((self.grow, self.grow, self.grow, self.fork, self.fork, self.end))
            act(self.rng.choice(self.scheduler.running))
            if not self.scheduler.running:
                self.start()
            self.checker.check()
        for beam in list(self.scheduler.running):
            self.end(beam)
        assert self.cache.pool.num_free_blocks == self.cache.pool.num_usable_blocks
        return self.executor.num_copies

    def beam(self, tokens):
        beam = Request(str(self.number), len(tokens), 1000, TokenContent(self.scheduler.keys, tokens))
        beam.status = RequestStatus.RUNNING
        self.executor.expect(beam, root=1)
        self.number += 1
        return beam

    def join(self, beam):
        self.scheduler.running.append(beam)
        self.scheduler.live[beam.request_id] = beam

    def start(self):
        beam = self.beam([self.rng.randrange(2) for _ in range(self.rng.randint(1, 12))])
        hit = self.cache.find_hit(beam)
        num_tokens = beam.num_tokens - hit.num_tokens
        assert self.cache.allocate_slots(beam, num_tokens, hit) is not None
        beam.num_computed_tokens = hit.num_tokens
        self.compute(beam, num_tokens)
        self.join(beam)

    def grow(self, beam):
        num_tokens = self.rng.choice((1, 1, 2, 5))
        tokens = [self.rng.randrange(2) for _ in range(num_tokens)]
        before = self.cache.pool.num_free_blocks
        beam.content.append(tokens)
        beam.num_tokens += num_tokens
        if self.cache.allocate_slots(beam, num_tokens) is None:
            assert before < 2 * len(self.cache.groups) + 2
            self.end(beam)
        else:
            self.compute(beam, num_tokens)

    def compute(self, beam, num_tokens):
        start = beam.num_computed_tokens
        step = Step(self.num_steps, [beam], [num_tokens], [start], [False], copies=self.cache.forks.take_copies()[0])
        step.admitted.append(Admission(beam, start, beam.block_tables, resumed=False))
        self.executor.submit(step)
        self.executor.settle(step)
        self.num_steps += 1
        beam.num_computed_tokens += num_tokens

    def fork(self, beam):
        child = self.beam(beam.content.token_ids(0, beam.num_tokens))
        if self.cache.forks.fork(beam, child, beam.num_tokens):
            child.num_computed_tokens = beam.num_tokens
            self.join(child)

    def end(self, beam):
        self.scheduler.running.remove(beam)
        del self.scheduler.live[beam.request_id]
        self.cache.free(beam)
        beam.status = RequestStatus.FINISHED
