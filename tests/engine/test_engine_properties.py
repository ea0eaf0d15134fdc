"""The whole engine on random configurations and workloads: what must hold whatever happens.

Pools are tiny and prompts are made of few tokens, so that everything is shared, evicted and preempted.
"""

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvtwin.engine.block_keys import UNKNOWN_TOKEN, OpaqueContent
from kvtwin.engine.prefix_id_content import PrefixIdContent
from kvtwin.engine.request import FinishReason
from tests.cases.engine_harness import Engine, blocks, shape
from tests.parts import examples, slow_but

EOS = 99
crowds = pytest.mark.parametrize("seed", slow_but(range(25), range(150)))


@dataclass(frozen=True)
class Arrival:
    """A request that arrives before iteration ``turn``."""

    turn: int
    prompt: tuple[int, ...]
    outputs: tuple[int, ...]
    stops: bool = False
    """Whether an end of sequence is looked for; it is in ``outputs`` or it is not."""
    options: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Operation:
    """An abort of request number ``abort``, or a reset of the prefix cache."""

    turn: int
    abort: int | None = None
    forced: bool = False


@st.composite
def configurations(draw):
    config = {
        "usable": draw(st.integers(2, 20)),
        "block_size": draw(st.integers(1, 5)),
        "async_scheduling": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 2, 5, 9, 16, 64])),
        "max_num_seqs": draw(st.sampled_from([1, 2, 3, 8])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.4])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 3, 8])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 2, 4])),
        "max_loras": draw(st.integers(0, 2)),
        "max_model_len": draw(st.sampled_from([20, 60, 200])),
    }
    if draw(st.integers(0, 4)) == 0:
        config |= {
            "enable_chunked_prefill": False,
            "long_prefill_token_threshold": 0,
            "max_num_batched_tokens": config["max_model_len"],
            "max_num_scheduled_tokens": draw(st.sampled_from([None, 10, 200])),
        }
    return config


@st.composite
def workloads(draw, *, operations=True, plain=False):
    tokens = st.integers(0, 1)
    documents = draw(st.lists(st.lists(tokens, min_size=1, max_size=40), min_size=1, max_size=3))
    events = []
    for _ in range(draw(st.integers(1, 9))):
        document = draw(st.sampled_from(documents))
        cut = draw(st.integers(0, len(document)))
        prompt = document[:cut] + draw(st.lists(tokens, min_size=cut == 0, max_size=8))
        outputs = draw(st.lists(tokens, min_size=1, max_size=12))
        stops, options = False, {}
        if not plain:
            stops = draw(st.integers(0, 3)) == 0
            if stops and draw(st.booleans()):
                outputs[draw(st.integers(0, len(outputs) - 1))] = EOS
            options["priority"] = draw(st.integers(0, 2))
            options["salt"] = draw(st.sampled_from([None, None, "x"]))
            options["lora"] = draw(st.sampled_from([None, None, None, "sql", "chat"]))
        events.append(Arrival(draw(st.integers(0, 12)), tuple(prompt), tuple(outputs), stops, options))
    if operations:
        for _ in range(draw(st.integers(0, 2))):
            abort = draw(st.none() | st.integers(0, len(events) - 1))
            events.append(Operation(draw(st.integers(0, 30)), abort, draw(st.booleans())))
    return events


def crowded(seed, *, plain=False):
    """Configuration and workload number ``seed``: a queue of requests that nearly all fit, one or two at a time."""
    rng = random.Random(seed)
    block_size = rng.choice((1, 2, 3, 4))
    usable = rng.randint(6, 24)
    room = usable * block_size
    config = {
        "usable": usable,
        "block_size": block_size,
        "async_scheduling": rng.random() < 0.5,
        "scheduling_policy": rng.choice(("fcfs", "priority")),
        "max_num_batched_tokens": rng.choice((3, 8, 16, 64)),
        "max_num_seqs": rng.choice((3, 8)),
        "enable_prefix_caching": rng.random() < 0.85,
        "watermark": rng.choice((0.0, 0.0, 0.1)),
        "scheduler_reserve_full_isl": rng.random() < 0.6,
        "long_prefill_token_threshold": rng.choice((0, 0, 2, 5)),
        "prefill_schedule_interval": rng.choice((1, 1, 1, 3)),
        "max_loras": 2,
        "max_model_len": 200,
    }
    documents = [[rng.randrange(2) for _ in range(room)] for _ in range(rng.choice((1, 2, 3)))]
    events = []
    for _ in range(rng.randint(4, 14)):
        prompt = rng.choice(documents)[: rng.randint(1, room // 2)] + [rng.randrange(2)] * rng.randint(0, 3)
        outputs = [rng.randrange(2) for _ in range(rng.randint(1, max(1, min(20, room + 2 - len(prompt)))))]
        options, stops = {}, False
        if not plain:
            options = {
                "priority": rng.randrange(3),
                "salt": rng.choice((None, None, None, "x")),
                "lora": rng.choice((None, None, None, "sql", "chat", "code")),
            }
            stops = rng.random() < 0.3
            if stops and rng.random() < 0.5:
                outputs[-1] = EOS
        events.append(Arrival(rng.choice((0, 0, rng.randint(0, 15))), tuple(prompt), tuple(outputs), stops, options))
    if rng.random() < 0.4:
        abort = rng.choice((None, None, rng.randrange(len(events))))
        events.append(Operation(rng.randint(0, 30), abort, rng.random() < 0.7))
    return config, events


class CheckedRun:
    """A workload served, every step checked; ``log`` has all decisions of each iteration."""

    def __init__(self, config, events, *, content=None, may_hang=False):
        self.engine = Engine(**config)
        self.log = []
        self._computed = {}
        self._content = content
        arrivals = [event for event in events if isinstance(event, Arrival)]
        self.arrivals = [replace(event, prompt=self._cut(event.prompt)) for event in arrivals]
        to_come = sorted(
            [
                *((event.turn, 0, index, event) for index, event in enumerate(self.arrivals)),
                *((event.turn, 1, 0, event) for event in events if isinstance(event, Operation)),
            ],
            key=lambda entry: entry[:3],
        )
        idle = turn = 0
        while to_come or self.engine.core.has_work():
            while to_come and to_come[0][0] <= turn:
                self._apply(*to_come.pop(0)[2:])
            step = self._iterate()
            idle = 0 if step is not None and step.requests else idle + 1
            if may_hang and idle > 20 and not to_come:
                break
            turn += 1
            assert turn < 5_000, f"no end in sight: {self.engine.unfinished()}"

    @property
    def requests(self):
        return [self.engine.requests[str(index)] for index in range(len(self.arrivals))]

    def _cut(self, prompt):
        """As the front end would have it: room for at least one output token."""
        return prompt[: self.engine.scheduler.config.max_model_len - 1]

    def _apply(self, index, event):
        scheduler = self.engine.scheduler
        if isinstance(event, Arrival):
            self.engine.add(
                str(index),
                event.prompt,
                len(event.outputs),
                outputs=event.outputs,
                content=self._content and (lambda _: self._content(self.engine, index, event)),
                eos_token_id=EOS if event.stops else None,
                **event.options,
            )
        elif event.abort is not None:
            scheduler.abort(str(event.abort))
        else:
            held = self.engine.pool.num_used_blocks
            assert scheduler.reset_prefix_cache(reset_running_requests=event.forced) is (event.forced or not held)

    def _iterate(self):
        scheduler = self.engine.scheduler
        ran_before = list(scheduler.running)
        num_live = len(scheduler.running) + len(scheduler.waiting)
        known = {request: request.num_tokens for request in (*scheduler.running, *scheduler.waiting)}
        step = self.engine.core.schedule_next()
        if step is not None:
            self.engine.steps.append(step)
            self._check(step, ran_before, num_live, known)
        queue = self.engine.free_order()
        if self.engine.core.must_collect():
            self.engine.core.process(self.engine._sample(self.engine.core.in_flight[0]))
        self.engine.checker.check()
        self.log.append(
            (
                step and list(shape(step).items()),
                step and [(each.request.request_id, each.num_hit_tokens, each.block_tables) for each in step.admitted],
                step and [(request.request_id, tables) for request, tables in step.new_blocks],
                step and [request.request_id for request in step.preempted],
                queue,
                self.engine.free_order(),
                [request.request_id for request in scheduler.running],
                [request.request_id for request in scheduler.waiting],
            )
        )
        return step

    def _check(self, step, ran_before, num_live, known):
        config = self.engine.scheduler.config
        self.engine.checker.check_step(step)
        preempted_now = [request for request in step.preempted if request in ran_before]  # others: by a reset
        assert not set(step.requests) & set(preempted_now)
        admitted = {admission.request: admission for admission in step.admitted}
        for request in step.preempted:
            self._computed.pop(request, None)
        limit = config.long_prefill_token_threshold if num_live > 1 else 0
        if limit and config.long_prefill_token_threshold_adaptive:
            limit = max(limit, config.max_num_batched_tokens // num_live)
        for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
            if request in admitted:
                hit = admitted[request].num_hit_tokens
                assert start == hit < known[request]
                assert hit % config.block_size == 0
                if not config.enable_chunked_prefill:
                    assert hit + num_tokens == known[request]
            else:
                assert start == self._computed[request], "tokens are computed in order, each once"
                assert request in ran_before
            if limit:
                assert num_tokens <= limit
            self._computed[request] = start + num_tokens
        if step.admitted:
            assert not preempted_now
            if len(self.engine.scheduler.running) > 1:
                assert self.engine.pool.num_free_blocks >= config.watermark_blocks
        adapters = {request.lora for request in self.engine.scheduler.running if request.lora}
        assert len(adapters) <= config.max_loras


def expected_output(arrival, config):
    """The tokens that a request delivers if nothing stops it but its own end."""
    outputs = arrival.outputs[: config.max_model_len - len(arrival.prompt)]
    if arrival.stops and EOS in outputs:
        outputs = outputs[: outputs.index(EOS) + 1]
    return list(outputs)


def check_ends(config, events):
    """Serve a workload and check what is left of it."""
    run = CheckedRun(config, events)
    engine, settings_ = run.engine, run.engine.scheduler.config
    aborted = {event.abort for event in events if isinstance(event, Operation)}
    for index, (request, arrival) in enumerate(zip(run.requests, run.arrivals, strict=True)):
        expected = expected_output(arrival, settings_)
        delivered = request.content.token_ids(len(arrival.prompt), request.num_tokens)
        assert delivered == expected[: len(delivered)], "outputs are complete and in order"
        assert request.is_finished
        assert request.num_in_flight_samples == 0 or request.finish_reason not in ("length", "capacity")
        if request.finish_reason is FinishReason.ABORT:
            assert index in aborted
        elif request.finish_reason in (FinishReason.REJECTED, FinishReason.CAPACITY):
            assert request.finish_message
        else:
            assert delivered == expected
            assert (request.finish_reason is FinishReason.STOP) == (EOS in delivered)
            slots = request.num_tokens - 1
            assert blocks(slots, settings_.block_size) <= engine.usable

    statistics, counts = engine.statistics, engine.statistics.prefix_cache
    assert engine.pool.num_free_blocks == engine.usable
    assert list(engine.pool.ref_counts) == [0] * engine.pool.num_blocks
    assert statistics.num_rejected == sum(r.finish_reason in ("rejected", "capacity") for r in run.requests)
    assert statistics.num_preemptions == sum(request.num_preemptions for request in run.requests)
    assert statistics.num_preemptions == sum(len(step.preempted) for step in engine.steps)
    assert statistics.num_scheduled_tokens == sum(step.total_tokens for step in engine.steps)
    first = [each for step in engine.steps for each in step.admitted if not each.resumed]
    again = [each for step in engine.steps for each in step.admitted if each.resumed]
    caching = settings_.enable_prefix_caching
    assert counts.requests == len(first) * caching
    assert counts.queries == sum(each.request.num_prompt_tokens for each in first) * caching
    assert counts.hits == sum(each.num_hit_tokens for each in first)
    assert counts.requests_with_hit == sum(each.num_hit_tokens > 0 for each in first)
    assert counts.preempted_requests == len(again) * caching
    assert counts.preempted_hits == sum(each.num_hit_tokens for each in again)
    assert counts.hits <= counts.queries
    assert counts.preempted_hits <= counts.preempted_queries
    assert 0.0 <= statistics.recent_hit_rate.rate <= 1.0
    if not caching:
        assert engine.pool.num_hashed_blocks == engine.pool.num_cached_keys == counts.hits == 0
        assert all(request.block_keys == [] for request in run.requests)
    if settings_.scheduling_policy == "fcfs":
        assert statistics.phantom_hit_tokens == 0


@examples(400)
@given(config=configurations(), events=workloads())
def test_everybody_is_served_or_told_why_not(config, events):
    check_ends(config, events)


@crowds
def test_everybody_is_served_or_told_why_not_in_a_crowd(seed):
    check_ends(*crowded(seed))


@examples(400)
@given(config=configurations(), events=workloads(operations=False))
def test_nobody_is_told_a_wrong_reason(config, events):
    """Rejected: what is too long beforehand, or for one unchunked step. Capacity: what turned out too long."""
    run = CheckedRun(config, events)
    engine, settings_ = run.engine, run.engine.scheduler.config
    for request, arrival in zip(run.requests, run.arrivals, strict=True):
        slots = len(arrival.prompt) + (0 if arrival.stops else len(arrival.outputs) - 1)
        slots = min(slots, settings_.max_model_len - 1)
        never_fits = blocks(slots, settings_.block_size) > engine.usable
        no_adapter = request.lora is not None and settings_.max_loras == 0
        if never_fits or no_adapter:
            assert request.finish_reason is FinishReason.REJECTED
            assert request.num_output_tokens == 0
        elif request.finish_reason is FinishReason.REJECTED:
            assert not settings_.enable_chunked_prefill
            assert request.num_tokens > settings_.token_budget
        elif request.finish_reason is FinishReason.CAPACITY:
            assert arrival.stops
            assert blocks(request.num_tokens, settings_.block_size) > engine.usable


@crowds
def test_the_same_run_twice(seed):
    assert CheckedRun(*crowded(seed)).log == CheckedRun(*crowded(seed)).log


@examples(200)
@given(config=configurations(), events=workloads())
def test_strict_and_default_agree_where_we_do_not_deviate(config, events):
    assume(strict_agrees(config, events))


@pytest.mark.slow
def test_strict_and_default_agree_in_a_crowd():
    assert sum(strict_agrees(*crowded(seed)) for seed in range(200)) > 60


def strict_agrees(config, events):
    """Whether strict and default can be compared; they must agree then."""
    default = CheckedRun(config, events)
    if default.engine.statistics.num_rejected or default.engine.statistics.phantom_hit_tokens:
        return False
    strict = CheckedRun(config | {"vllm_strict": True}, events, may_hang=True)
    assert strict.log == default.log
    assert strict.engine.statistics == default.engine.statistics
    return True


# ---------------------------------------------------------------- equal contents told in different ways


def without_outputs(events):
    """The same arrivals, but nothing is known of their outputs."""
    return [replace(event, outputs=(UNKNOWN_TOKEN,) * len(event.outputs)) for event in events]


ID_TOKENS = 12


@examples(200)
@given(
    config=configurations(),
    block_size=st.sampled_from([1, 2, 3, 4, 6, 12]),
    chains=st.lists(
        st.tuples(st.lists(st.integers(0, 1), max_size=3), st.integers(-11, 15), st.integers(1, 10), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
)
def test_prefix_ids_decide_as_the_tokens_they_stand_for(config, block_size, chains):
    """At any block size that divides the ids' stretch; ids are made from the tokens, as a trace is recorded."""
    config = config | {"block_size": block_size, "max_model_len": 200}
    config["max_num_batched_tokens"] = max(
        config["max_num_batched_tokens"], 1 if config.get("enable_chunked_prefill", True) else 200
    )
    events, ids_of = [], []
    for index, (chain, tail, max_tokens, turn) in enumerate(chains):
        tokens = [
            hash((*chain[: number + 1], position)) % 2**31
            for number in range(len(chain))
            for position in range(ID_TOKENS)
        ]
        tokens = tokens[:tail] if tail < 0 else tokens + [2**32 + 100 * index + position for position in range(tail)]
        if not tokens:
            tokens = [2**32 + 100 * index]
        ids = [hash(tuple(chain[: number + 1])) for number in range(len(chain))]
        ids_of.append(ids)
        events.append(Arrival(turn, tuple(tokens), (UNKNOWN_TOKEN,) * max_tokens))

    def prefix_ids(engine, index, event):
        ends = range(ID_TOKENS, ID_TOKENS * len(ids_of[index]) + ID_TOKENS, ID_TOKENS)
        return PrefixIdContent(engine.scheduler.keys, len(event.prompt), ids_of[index], ends)

    by_tokens, by_ids = CheckedRun(config, events), CheckedRun(config, events, content=prefix_ids)
    assert by_ids.log == by_tokens.log
    assert by_ids.engine.statistics == by_tokens.engine.statistics


@examples(200)
@given(config=configurations(), events=workloads(plain=True))
def test_unknown_prompts_decide_as_prompts_that_all_differ(config, events):
    check_opaque(config, events)


@crowds
def test_unknown_prompts_decide_as_prompts_that_all_differ_in_a_crowd(seed):
    check_opaque(*crowded(seed, plain=True))


def check_opaque(config, events):
    """Also preemptions, which find their own blocks again, and what is evicted first are the same."""
    operations = [event for event in events if isinstance(event, Operation)]
    arrivals = without_outputs([event for event in events if isinstance(event, Arrival)])
    distinct = [
        replace(event, prompt=tuple(1000 * (index + 1) + position for position in range(len(event.prompt))))
        for index, event in enumerate(arrivals)
    ]
    known = CheckedRun(config, distinct + operations)
    opaque = CheckedRun(config, arrivals + operations, content=lambda engine, *_: OpaqueContent(engine.scheduler.keys))
    assert opaque.log == known.log
    assert opaque.engine.statistics == known.engine.statistics
    assert opaque.engine.pool.num_evictions == known.engine.pool.num_evictions


@examples(100)
@given(events=workloads(plain=True, operations=False), fine=st.integers(1, 4), factor=st.integers(2, 4))
def test_a_coarser_block_never_hits_more(events, fine, factor):
    """One request after the other in a pool that holds everything."""
    hits = []
    for block_size in (fine, fine * factor):
        engine = Engine(2_000, block_size=block_size, check=False)
        hits.append([engine.serve(event.prompt, len(event.outputs), outputs=event.outputs) for event in events])
    assert all(0 <= few <= many for many, few in zip(*hits, strict=True))
    assert all(many - few < fine * factor for many, few in zip(*hits, strict=True))


@examples(100)
@given(events=workloads(plain=True, operations=False), block_size=st.integers(1, 5))
def test_where_nothing_binds_both_loops_admit_alike(events, block_size):
    """Everything fits, so the order and the hits are those of the arrivals."""
    # Outputs that nobody's prompt has: they are cached a step later asynchronously.
    events = [replace(event, outputs=tuple(range(1000, 1000 + len(event.outputs)))) for event in events]
    config = {"usable": 1_000, "block_size": block_size}
    admissions = []
    for asynchronous in (False, True):
        run = CheckedRun(config | {"async_scheduling": asynchronous}, events)
        assert run.engine.statistics.num_preemptions == 0
        admissions.append([(name, hit) for entry in run.log for name, hit, _ in entry[1] or ()])
    assert admissions[0] == admissions[1]
    arrived = sorted(range(len(events)), key=lambda index: (events[index].turn, index))
    assert [name for name, _ in admissions[0]] == [str(index) for index in arrived]


@examples(100)
@given(config=configurations(), events=workloads(plain=True, operations=False))
def test_first_come_first_served(config, events):
    """Without adapters, requests start in order of arrival, whatever is preempted in between."""
    run = CheckedRun(config | {"scheduling_policy": "fcfs"}, events)
    started = [each.request.request_id for step in run.engine.steps for each in step.admitted if not each.resumed]
    arrived = sorted(range(len(run.arrivals)), key=lambda index: (run.arrivals[index].turn, index))
    served = [str(index) for index in arrived if str(index) in started]
    assert started == served
