"""Check 1: a simulation that is fed with a measured run's outputs arrives at its decisions; anything else is seen."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from sim.decided_steps import DecisionRecorder
from sim.decision_check import check_decisions
from sim.requests import EOS_TOKEN
from sim.serving import ServerSimulation
from tests.sim.row_executor import FAULTS, RowExecutor
from workloads.request_record import RequestRecord


class Measured:
    """A run on a :class:`RowExecutor`, with what is kept of it. ``stop_after`` steps its device breaks."""

    def __init__(self, config, workload, seed=0, *, ignore_eos=True, fault=None, stop_after=None, **server):
        self.workload = workload
        self.stopped = False
        self.simulation_with = lambda executor: ServerSimulation(
            config, executor, ignore_eos=ignore_eos, check=True, **server
        )
        device = RowExecutor(config, seed, eos=None if ignore_eos else EOS_TOKEN, fault=fault)
        if stop_after is not None:
            device = Breaking(device, stop_after)
        simulation = self.simulation_with(device)
        decisions = DecisionRecorder(simulation.scheduler)
        simulation.observers.append(decisions)
        try:
            simulation.run(workload)
        except MemoryError:
            self.stopped = True
            simulation.close()
        self.recorder = simulation.recorder
        self.decided, self.executed = decisions.steps, device.executed

    def check(self, decided=None, executed=None, **options):
        return check_decisions(
            self.simulation_with,
            self.workload,
            self.decided if decided is None else decided,
            self.executed if executed is None else executed,
            **{"ended_early": self.stopped} | options,
        )


class Breaking:
    """A device that is out of memory at its ``stop_after``-th step, when that is submitted or collected."""

    def __init__(self, device, stop_after):
        self._device, self._num_left, self._at_collect = device, stop_after, stop_after % 2
        self.executed = device.executed

    def submit(self, step):
        if not self._at_collect:
            self._count()
        return self._device.submit(step)

    def collect(self, ticket):
        if self._at_collect:
            self._count()
        return self._device.collect(ticket)

    def _count(self):
        self._num_left -= 1
        if self._num_left < 0:
            raise MemoryError("no more")


@st.composite
def configurations(draw):
    seats = draw(st.sampled_from([1, 2, 4, 8]))
    caching = draw(st.sampled_from([True, True, True, False]))
    config = {
        "num_blocks": draw(st.integers(4, 24)),
        "block_size": draw(st.integers(1, 5)),
        "async_scheduling": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "max_num_seqs": seats,
        "max_num_batched_tokens": seats + draw(st.sampled_from([0, 3, 12, 64])),
        "enable_prefix_caching": caching,
        "parallel_sampling": draw(st.sampled_from(["prefix", "fork"])),
        "max_model_len": draw(st.sampled_from([24, 60])),
    }
    if draw(st.booleans()):
        config |= {"preemption_mode": "swap", "num_swap_blocks": draw(st.integers(1, 30))}
    if caching and draw(st.integers(0, 2)) == 0:
        config["num_offload_blocks"] = draw(st.integers(1, 12))
    return EngineConfig(**config)


@st.composite
def workloads(draw):
    tokens = st.integers(0, 1)
    document = draw(st.lists(tokens, min_size=1, max_size=30))
    records, arrival_ns, in_session = [], 0, 0
    for index in range(draw(st.integers(1, 9))):
        arrival_ns += draw(st.sampled_from([0, 0, 50, 900, 4_000]))
        prompt = document[: draw(st.integers(0, len(document)))] + draw(st.lists(tokens, min_size=1, max_size=8))
        session = draw(st.sampled_from([None, None, "s"]))
        in_session += session is not None
        records.append(
            RequestRecord(
                request_id=str(index),
                arrival_ns=arrival_ns,
                prompt_tokens=len(prompt),
                output_tokens=draw(st.integers(1, 14)),
                token_ids=prompt,
                n=draw(st.sampled_from([1, 1, 2, 3])),
                priority=draw(st.integers(0, 1)),
                session=session,
                think_time_ns=draw(st.sampled_from([0, 300])) if session and in_session > 1 else None,
            )
        )
    return records


settings_of_servers = st.fixed_dictionaries(
    {
        "ignore_eos": st.booleans(),
        "max_concurrency": st.sampled_from([None, None, 1, 3]),
        "num_warm_up_requests": st.sampled_from([0, 0, 2]),
        "seed": st.integers(0, 99),
    }
)


@settings(max_examples=200, deadline=None)
@given(configurations(), workloads(), settings_of_servers)
def test_the_fed_simulation_arrives_at_the_same_decisions(config, workload, server):
    measured = Measured(config, workload, **server)
    check = measured.check()
    assert check.differences == []
    assert check.num_steps == len(measured.executed) == len(measured.decided)
    assert check.passed == (check.num_steps > 0)


@settings(max_examples=100, deadline=None)
@given(configurations(), workloads(), settings_of_servers, st.integers(0, 12))
def test_a_run_that_broke_is_compared_as_far_as_it_came(config, workload, server, stop_after):
    measured = Measured(config, workload, **server, stop_after=stop_after)
    check = measured.check()
    assert check.differences == []
    assert check.num_steps == len(measured.executed)
    if measured.stopped:
        assert len(measured.executed) <= stop_after
        if not server["num_warm_up_requests"]:
            assert len(measured.recorder.steps.end_ns) == len(measured.decided)
        assert not measured.check(ended_early=False).passed


def crowd(*, n, spread_ns, output=24):
    """Requests that share a prefix and do not all fit."""
    shared = [1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]
    return [
        RequestRecord(
            request_id=f"r{index}",
            arrival_ns=spread_ns * index,
            prompt_tokens=len(prompt),
            output_tokens=output + index % 5,
            token_ids=prompt,
            n=n,
        )
        for index in range(9)
        for prompt in [shared + [index & 1, index & 2, index & 4, index] * (1 + index % 3) + [index] * (index % 4)]
    ]


TIGHT = {"num_blocks": 30, "block_size": 4, "max_num_seqs": 6, "max_num_batched_tokens": 16, "max_model_len": 100}
MODES = {
    "sync": {"async_scheduling": False},
    "async": {},
    "swap": {"preemption_mode": "swap", "num_swap_blocks": 60},
    "offload": {"num_offload_blocks": 10},
    "fork": {"parallel_sampling": "fork"},
    "fork-swap": {"parallel_sampling": "fork", "preemption_mode": "swap", "num_swap_blocks": 60},
}
modes = pytest.mark.parametrize("mode", MODES)


def measure(mode, *, spread_ns=120, **options):
    workload = crowd(n=2 if mode.startswith("fork") else 1, spread_ns=spread_ns)
    return Measured(EngineConfig(**TIGHT | MODES[mode]), workload, **options)


@modes
def test_the_runs_below_do_all_that_can_go_wrong(mode):
    measured = measure(mode)
    check = measured.check()
    assert check.passed, check.differences[:3]
    decided = measured.decided
    assert sum(len(step.preempted) for step in decided) > 3
    assert sum(sum(step.hit_tokens) for step in decided) > 0
    assert sum(len(step.evicted_blocks) for step in decided) > 3
    assert any(step.forks for step in decided) == any(step.copies for step in decided) == mode.startswith("fork")
    assert any(sum(step.external_tokens) for step in decided) == (mode == "offload")
    assert any(step.saves for step in decided) == any(step.loads for step in decided) == (mode in SAVING)
    assert Counter(reason for step in decided for reason in step.finish_reasons)["length"] >= 9


SAVING = ("swap", "fork-swap", "offload")

_WHERE = {
    "replaced entries are not updated": "device block_tables",
    "forks write their token": "device slots",
    "a row keeps what it held before it was preempted": "device block_tables",
    "new blocks go to the front": "device block_tables",
    "rows of two requests are mixed up": "device block_tables",
    "slots are those of the token before": "device slots",
    "the step's order is turned round": "device request_ids",
    "a token is delivered and not noted": "engine output_tokens",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_device_is_seen(fault):
    measured = measure("fork", fault=fault)
    check = measured.check()
    assert not check.passed
    first = check.differences[0]
    assert f"{first.source} {first.field}".startswith(_WHERE[fault])
    assert (first.request_id is None) == (fault == "the step's order is turned round")


# ---------------------------------------------------------------- records that are not what happened


def step_with(steps, wanted, after=0):
    return next(index for index, step in enumerate(steps) if index >= after and wanted(step))


def changed(sequence, *path):
    """A copy with one more in the entry that ``path`` leads to."""
    position, *rest = path
    copy = list(sequence)
    copy[position] = changed(copy[position], *rest) if rest else copy[position] + 1
    return copy


def with_step(steps, index, **changes):
    return [*steps[:index], replace(steps[index], **changes), *steps[index + 1 :]]


def decoding(step):
    return len(step.request_ids) > 2 and all(step.tokens)


@modes
def test_every_table_entry_and_slot_counts(mode):
    measured = measure(mode)
    index = step_with(measured.executed, decoding, after=20)
    step = measured.executed[index]
    for request, table in enumerate(step.block_tables):
        for position in range(len(table)):
            executed = with_step(measured.executed, index, block_tables=changed(step.block_tables, request, position))
            (difference,) = measured.check(executed=executed).differences
            assert difference[:4] == (index, "device", step.request_ids[request], f"block_tables[{position}]")
            assert (difference.expected, difference.got) == (table[position], table[position] + 1)
        executed = with_step(measured.executed, index, slots=changed(step.slots, request, 0))
        (difference,) = measured.check(executed=executed).differences
        assert difference[:4] == (index, "device", step.request_ids[request], "slots[0]")
    executed = with_step(measured.executed, index, block_tables=[*step.block_tables[:-1], step.block_tables[-1][:-1]])
    (difference,) = measured.check(executed=executed).differences
    assert difference.field == "block_tables"
    executed = with_step(measured.executed, index, request_ids=step.request_ids[::-1])
    differences = measured.check(executed=executed).differences
    assert (index, "device", None, "request_ids[0]") in [difference[:4] for difference in differences]


@modes
def test_another_token_or_duration_is_seen(mode):
    measured = measure(mode)
    index = step_with(measured.executed, decoding, after=10)
    step = measured.executed[index]
    for request in range(len(step.request_ids)):
        executed = with_step(measured.executed, index, tokens=changed(step.tokens, request, 0))
        first = measured.check(executed=executed).differences[0]
        assert first[:4] == (index, "engine", step.request_ids[request], "output_tokens[0]")
    executed = with_step(measured.executed, index, duration_ns=step.duration_ns + 1)
    first = measured.check(executed=executed).differences[0]
    assert first.field == "scheduled_ns"
    assert first.step > index


@modes
def test_a_duration_that_changes_admissions(mode):
    """The next request arrives during the step instead of behind it."""
    measured = measure(mode, spread_ns=2_000)
    index = step_with(measured.executed, lambda step: step.request_ids, after=4)
    duration_ns = measured.executed[index].duration_ns + 2_000
    executed = with_step(measured.executed, index, duration_ns=duration_ns)
    fields = {difference.field.split("[")[0] for difference in measured.check(executed=executed).differences}
    assert {"scheduled_ns", "request_ids", "admitted"} <= fields


@modes
def test_a_missing_a_repeated_and_a_further_step_are_seen(mode):
    measured = measure(mode)
    executed, decided = measured.executed, measured.decided
    for early in (False, True):
        (difference,) = measured.check(executed=executed[:30] + executed[31:], ended_early=early).differences[:1]
        assert difference[:4] == (30, "device", None, "index")
        (difference,) = measured.check(executed=executed[:30] + executed[29:], ended_early=early).differences[:1]
        assert difference[:4] == (30, "device", None, "index")
        assert not measured.check(executed=[*executed, executed[-1]], ended_early=early).passed
    assert not measured.check(executed=executed[:-1]).passed
    assert not measured.check(decided=decided[:-1]).passed
    assert not measured.check(decided=[*decided, decided[-1]]).passed
    assert measured.check(executed=executed[:40], ended_early=True).num_steps == 40
    assert measured.check(executed=executed[:40], ended_early=True).passed
    assert not measured.check(executed=[], decided=[], ended_early=True).passed, "nothing was compared"


_DECIDED = {
    "scheduled_ns": None,
    "request_ids": [0],
    "num_computed_tokens": [0],
    "num_tokens": [0],
    "block_tables": [0, 0],
    "admitted": [0],
    "hit_tokens": [0],
    "preempted": [0],
    "finished": [0],
    "finish_reasons": [0],
    "evicted_blocks": [0],
    "output_tokens": [0, 0],
}
_ELSEWHERE = {"copies": "fork", "forks": "fork", "saves": "swap", "loads": "swap", "external_tokens": "offload"}


def _otherwise(value):
    if isinstance(value, (list, tuple)):
        return [_otherwise(value[0]), *value[1:]]
    return f"{value}?" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("name", [*_DECIDED, *_ELSEWHERE])
def test_another_decision_of_the_engine_is_seen(name):
    measured = measure(_ELSEWHERE.get(name, "async"))

    def has_it(step):
        value = getattr(step, name)
        return value if name not in ("output_tokens", "block_tables") else value and value[0]

    index = step_with(measured.decided, has_it, after=5)
    value = getattr(measured.decided[index], name)
    decided = with_step(measured.decided, index, **{name: _otherwise(value)})
    (difference,) = measured.check(decided=decided).differences
    assert (difference.step, difference.source) == (index, "engine")
    assert difference.field.split("[")[0] == name
    if isinstance(value, (list, tuple)) and len(value) > 1:  # order counts
        decided = with_step(measured.decided, index, **{name: value[::-1]})
        assert measured.check(decided=decided).passed == (value == value[::-1])


def test_a_difference_reads_as_one_line():
    measured = measure("async")
    step = measured.executed[20]
    executed = with_step(measured.executed, 20, slots=changed(step.slots, 1, 0))
    (difference,) = measured.check(executed=executed).differences
    slot = step.slots[1][0]
    assert str(difference) == (
        f"step 20, request {step.request_ids[1]}: device slots[0]: expected {slot}, got {slot + 1}"
    )
