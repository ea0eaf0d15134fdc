"""What becomes of a session's blocks between its turns: each policy on random sessions, and one by one."""

import copy
import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from tests.cases.engine_harness import Engine
from tests.parts import examples

POLICIES = ["lru", "pin", "pin-until-pressure", "ttl=0", "ttl=5e-9", "ttl=20e-9", "ttl=1e9"]
both_loops = pytest.mark.parametrize("asynchronous", [False, True])
every_policy = pytest.mark.parametrize("policy", POLICIES)


@dataclass(frozen=True)
class Turn:
    """A request whose prompt is all that was said before, but the last ``forgotten`` tokens, and ``new`` tokens."""

    pause: int
    """Iterations since the turn before ended."""
    forgotten: int
    new: tuple[int, ...]
    outputs: tuple[int, ...]
    aborted_after: int | None = None


@dataclass(frozen=True)
class Conversation:
    """One session; without a name, requests that belong to none."""

    name: str | None
    start: int
    turns: tuple[Turn, ...]


@st.composite
def conversations(draw, *, aborts=True):
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)
    opening = draw(tokens)
    found = []
    for index in range(draw(st.integers(1, 6))):
        turns = [
            Turn(
                pause=draw(st.sampled_from([0, 0, 1, 3, 12])),
                forgotten=draw(st.sampled_from([0, 0, 0, 5])) if number else 0,
                new=(opening if number == 0 and draw(st.booleans()) else ()) + draw(tokens),
                outputs=draw(st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)),
                aborted_after=draw(st.sampled_from([None] * 6 + [0, 4])) if aborts else None,
            )
            for number in range(draw(st.integers(1, 4)))
        ]
        name = f"s{index}" if draw(st.integers(0, 4)) else None
        found.append(Conversation(name, draw(st.integers(0, 10)), tuple(turns)))
    return found


@st.composite
def configurations(draw):
    groups = draw(
        st.sampled_from(
            [
                (),
                (),
                (CacheGroupSpec("full_attention", 4), CacheGroupSpec("sliding_window", 4, 6)),
                (CacheGroupSpec("sliding_window", 2, 7),),
                (CacheGroupSpec("full_attention", 4), CacheGroupSpec("mamba", 4)),
            ]
        )
    )
    return {
        "usable": draw(st.integers(4, 40)),
        "block_size": draw(st.integers(1, 4)),
        "cache_groups": groups,
        "prefix_cache_retention_interval": draw(st.sampled_from([0, None])) if groups else 0,
        "async_scheduling": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_batched_tokens": draw(st.sampled_from([3, 8, 64])),
        "max_num_seqs": draw(st.sampled_from([1, 3])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "max_model_len": draw(st.sampled_from([30, 200])),
        "num_offload_blocks": draw(st.sampled_from([0, 0, 5])),
    } | draw(st.sampled_from([{}, {}, {"preemption_mode": "swap", "num_swap_blocks": 12}]))


def crowded(seed):
    """Configuration and conversations number ``seed``: pools that are always too small."""
    rng = random.Random(seed)
    config = {
        "usable": rng.randint(8, 24),
        "block_size": rng.choice((1, 2, 4)),
        "async_scheduling": rng.random() < 0.5,
        "max_num_batched_tokens": rng.choice((4, 16, 64)),
        "max_num_seqs": 4,
        "max_model_len": 200,
    }
    room = config["usable"] * config["block_size"]
    opening = [rng.randrange(2) for _ in range(rng.randint(0, room // 6))]

    def turn(number):
        new = tuple((opening if number == 0 else []) + [rng.randrange(2) for _ in range(rng.randint(1, room // 8))])
        outputs = tuple(rng.randrange(2) for _ in range(rng.randint(1, max(1, room // 10))))
        return Turn(rng.choice((0, 2, 8)), 0, new, outputs)

    sessions = [
        Conversation(f"s{index}", rng.randint(0, 20), tuple(turn(number) for number in range(rng.randint(1, 4))))
        for index in range(rng.randint(3, 8))
    ]
    return config, sessions


class Served:
    """Conversations served to their end, everything checked. An iteration is a nanosecond."""

    def __init__(self, config, sessions, policy, watch=None):
        self.engine = Engine(**config, retention=policy)
        self.scheduler, self.retention = self.engine.scheduler, self.engine.scheduler.retention
        self.hits, self.decisions = {}, []
        self._now = 0
        self._turn = [0] * len(sessions)
        self._due = [session.start for session in sessions]
        self._said = [[] for _ in sessions]
        while any(due is not None for due in self._due) or self.engine.core.has_work():
            self.retention.advance_to(self._now)
            for index, session in enumerate(sessions):
                self._move(index, session)
            if watch:
                watch(self)
            step = self.engine.iterate()
            self._note(step, sessions)
            self._now += 1
            assert self._now < 2_000, f"no end in sight: {self.engine.unfinished()}"

    def _move(self, index, session):
        due, number = self._due[index], self._turn[index]
        if due is None:
            return
        turn, name = session.turns[number], f"{index}/{number}"
        if name not in self.engine.requests:
            if due > self._now:
                return
            said = self._said[index]
            prompt = [*said[: len(said) - turn.forgotten], *turn.new]
            prompt = prompt[-(self.scheduler.config.max_model_len - 1) :]
            self.engine.add(name, prompt, len(turn.outputs), outputs=turn.outputs, session=session.name)
        request = self.engine.requests[name]
        if turn.aborted_after is not None and self._now >= due + turn.aborted_after:
            self.scheduler.abort(name)
        if request.is_finished:
            self._said[index] = request.content.token_ids(0, request.num_tokens)
            self._turn[index] += 1
            if self._turn[index] < len(session.turns):
                self._due[index] = self._now + session.turns[self._turn[index]].pause
                self._move(index, session)
            else:
                self._due[index] = None
                if session.name is not None:
                    self.retention.session_over(session.name)

    def _note(self, step, sessions):
        over = {session.name for session, due in zip(sessions, self._due, strict=True) if due is None}
        assert not over & set(self.retention.pins), "a session that is over has a pin"
        admitted = [] if step is None else [(each.request.request_id, each.num_hit_tokens) for each in step.admitted]
        for name, hit in admitted:
            self.hits.setdefault(name, hit)
        self.decisions.append((admitted, step and step.num_tokens, self.engine.free_order()))


@examples(200)
@given(config=configurations(), sessions=conversations(), policy=st.sampled_from(POLICIES))
def test_every_session_is_served_and_leaves_nothing(config, sessions, policy):
    served = Served(config, sessions, policy)
    assert all(request.is_finished for request in served.engine.requests.values())
    assert not served.retention.pins
    assert served.retention.num_pinned_blocks == 0
    assert served.engine.pool.num_free_blocks == served.engine.usable


@every_policy
@pytest.mark.parametrize("seed", range(12))
def test_every_session_is_served_in_a_crowd(seed, policy):
    served = Served(*crowded(seed), policy)
    assert all(request.is_finished for request in served.engine.requests.values())
    assert served.engine.pool.num_free_blocks == served.engine.usable


@examples(100)
@given(config=configurations(), sessions=conversations())
def test_a_pin_of_no_time_is_lru_and_one_without_end_is_pin(config, sessions):
    lru, pin = Served(config, sessions, "lru"), Served(config, sessions, "pin")
    none, endless = Served(config, sessions, "ttl=0"), Served(config, sessions, "ttl=1e9")
    assert none.decisions == lru.decisions
    assert endless.decisions == pin.decisions
    assert endless.retention.num_forced_releases == pin.retention.num_forced_releases


@examples(25)
@given(config=configurations(), sessions=conversations(aborts=False))
def test_where_memory_never_binds_all_policies_hit_the_same(config, sessions):
    config = config | {"usable": 1_000, "block_size": 4}
    runs = [Served(config, sessions, policy) for policy in POLICIES]
    assert all(run.hits == runs[0].hits for run in runs)
    assert all(run.engine.pool.num_evictions == run.engine.statistics.num_preemptions == 0 for run in runs)


def as_if_never_pinned(scheduler):
    """What the next step would be if all pins had been released before it: preempted, running and first admitted."""
    twin = copy.deepcopy(scheduler)
    twin.retention.release_all()
    return gist(twin.schedule())


def gist(step):
    admitted = {admission.request.request_id for admission in step.admitted}
    ran = [
        (request.request_id, num_tokens)
        for request, num_tokens in zip(step.requests, step.num_tokens, strict=True)
        if request.request_id not in admitted
    ]
    first = [(each.request.request_id, each.num_hit_tokens) for each in step.admitted[:1]]
    return [request.request_id for request in step.preempted], ran, first


@examples(60)
@given(config=configurations(), sessions=conversations())
def test_pins_that_yield_cost_nobody_anything(config, sessions):
    """Each step preempts, runs and (first) admits the same requests as if there had been no pins before it."""
    check_that_pins_yield(config, sessions)


@pytest.mark.parametrize("seed", range(15))
def test_pins_that_yield_cost_nobody_anything_in_a_crowd(seed):
    check_that_pins_yield(*crowded(seed))


def check_that_pins_yield(config, sessions):
    expected = []

    def watch(served):
        if served.scheduler.has_requests():
            expected.append(as_if_never_pinned(served.scheduler))

    served = Served(config, sessions, "pin-until-pressure", watch)
    assert [gist(step) for step in served.engine.steps] == expected
    assert served.retention.num_forced_releases == 0


# ---------------------------------------------------------------- one by one


def session_of_two(engine, between):
    """A turn of 8 blocks, ``between``, then the next turn; its hit tokens."""
    said = engine.fresh(31)
    engine.serve(said, 2, session="s", outputs=[7, 8])
    between(engine)
    engine.add("next", [*said, 7, 8, *engine.fresh(3)], 1, session="s")
    engine.run()
    return engine.hits("next")[0]


@both_loops
@pytest.mark.parametrize(
    ("policy", "hit"), [("lru", 0), ("ttl=0", 0), ("ttl=100", 32), ("pin", 32), ("pin-until-pressure", 32)]
)
def test_others_that_fit_beside_a_pin(policy, hit, asynchronous):
    """Six requests of 6 blocks, one after another, in a pool of 20: without a pin they evict everything."""
    engine = Engine(20, block_size=4, async_scheduling=asynchronous, retention=policy)
    assert session_of_two(engine, lambda engine: [engine.serve(24) for _ in range(6)]) == hit


@both_loops
@pytest.mark.parametrize(("policy", "forced", "under_pressure"), [("pin", 1, 0), ("pin-until-pressure", 0, 1)])
def test_another_that_needs_the_whole_pool(policy, forced, under_pressure, asynchronous):
    engine = Engine(20, block_size=4, async_scheduling=asynchronous, retention=policy)
    assert session_of_two(engine, lambda engine: engine.serve(80)) == 0
    assert engine.scheduler.retention.num_forced_releases == forced
    assert engine.scheduler.retention.num_pressure_releases == under_pressure


@both_loops
def test_pins_make_others_wait_and_preempt(asynchronous):
    """Two requests that fit beside each other, but not beside a pin of 8 of 20 blocks."""

    def between(engine):
        for name in ("a", "b"):
            engine.add(name, 20, 9)
        engine.run()

    preemptions = {}
    for policy in ("lru", "pin", "pin-until-pressure"):
        engine = Engine(20, block_size=4, async_scheduling=asynchronous, retention=policy)
        session_of_two(engine, between)
        preemptions[policy] = engine.statistics.num_preemptions
    assert preemptions["lru"] == preemptions["pin-until-pressure"] == 0
    assert preemptions["pin"] > 0


def test_the_oldest_pin_goes_first_and_ones_own_last():
    engine = Engine(20, block_size=4, retention="pin-until-pressure")
    said = engine.fresh(20)
    engine.serve(said, session="own")
    for session in ("old", "young"):
        engine.serve(20, session=session)
    assert list(engine.scheduler.retention.pins) == ["own", "old", "young"]
    engine.add("next", [*said, *engine.fresh(20)], 9, session="own")  # 5 of 10 blocks hit, 5 are free
    engine.iterate()
    assert list(engine.scheduler.retention.pins) == ["old", "young"]
    engine.run()
    assert list(engine.scheduler.retention.pins) == ["young", "own"]
    assert engine.scheduler.retention.num_pressure_releases == 1
    assert engine.hits("next") == [20]


def test_a_pin_holds_full_blocks_only_and_is_freed_as_if_the_turn_ended_then():
    """13 tokens in blocks of 4: three blocks have keys. The fourth is free at once, the others later, deepest first."""
    engine = Engine(10, block_size=4, retention="pin")
    engine.serve(12, 2, session="s")
    (pin,) = engine.scheduler.retention.pins.values()
    assert pin.tables == [[1, 2, 3]]
    assert engine.free_order() == [4, 5, 6, 7, 8, 9, 10]
    engine.scheduler.retention.session_over("s")
    assert engine.free_order() == [4, 5, 6, 7, 8, 9, 10, 3, 2, 1]


def test_time_limit_counts_from_the_end_of_the_turn():
    engine = Engine(10, block_size=4, retention="ttl=10")
    retention = engine.scheduler.retention
    retention.advance_to(5 * 10**9)
    engine.serve(12, session="s")
    retention.advance_to(15 * 10**9 - 1)
    assert list(retention.pins) == ["s"]
    retention.advance_to(15 * 10**9)
    assert not retention.pins
    assert engine.pool.num_free_blocks == 10


@pytest.mark.parametrize("forced", [False, True])
def test_a_reset_of_the_cache_releases_the_pins(forced):
    engine = Engine(20, block_size=4, retention="pin")
    said = engine.fresh(12)
    engine.serve(said, session="s")
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=forced)
    assert not engine.scheduler.retention.pins
    assert engine.cached_prefix([*said, 1]) == 0
    engine.serve(said, session="s")
    engine.add("running", 8, 5)
    engine.iterate()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=forced) is forced
    assert list(engine.scheduler.retention.pins) == ([] if forced else ["s"])
    engine.run()


def test_windows_pin_what_the_turn_still_held():
    """Blocks behind the window were let go while the turn ran; they have no place in a pin."""
    groups = (CacheGroupSpec("full_attention", 4), CacheGroupSpec("sliding_window", 4, 8))
    engine = Engine(40, cache_groups=groups, prefix_cache_retention_interval=None, retention="pin")
    engine.serve(20, 9, session="s")
    (pin,) = engine.scheduler.retention.pins.values()
    assert [len(table) for table in pin.tables] == [7, 2]


@pytest.mark.parametrize(
    "name", ["", "LRU", "ttl", "ttl=", "ttl=x", "ttl=-1", "ttl=nan", "ttl=inf", "ttl=1e999", "pin=3"]
)
def test_policies_that_do_not_exist(name):
    with pytest.raises(ValueError, match=r"^retention: expected lru, pin, pin-until-pressure or ttl=SECONDS, got"):
        EngineConfig(num_blocks=9, retention=name)


def test_pins_need_a_prefix_cache():
    with pytest.raises(ValueError, match=r"^retention: pin keeps cached blocks, and prefix caching is off$"):
        EngineConfig(num_blocks=9, retention="pin", enable_prefix_caching=False)
