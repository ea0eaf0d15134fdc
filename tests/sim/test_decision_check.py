"""Check 1: a simulation that is fed with a measured run's outputs arrives at its decisions; anything else is seen."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.engine.config import EngineConfig
from kvtwin.workloads.request_record import RequestRecord
from tests.parts import examples
from tests.sim.measured_run import Measured, configurations, measure, modes, settings_of_servers, workloads
from tests.sim.row_executor import FAULTS


@examples(200)
@given(configurations(), workloads(), settings_of_servers)
def test_the_fed_simulation_arrives_at_the_same_decisions(config, workload, server):
    measured = Measured(config, workload, **server)
    check = measured.check()
    assert check.differences == []
    assert check.num_steps == len(measured.executed) == len(measured.decided)
    assert check.passed == (check.num_steps > 0)


@examples(150)
@given(configurations(), workloads(), settings_of_servers, st.sampled_from(FAULTS))
def test_a_fault_is_seen_exactly_when_it_made_a_difference(config, workload, server, fault):
    faulty, right = Measured(config, workload, **server, fault=fault), Measured(config, workload, **server)
    check = faulty.check()
    assert bool(check.differences) == ((faulty.decided, faulty.executed) != (right.decided, right.executed))


@examples(100)
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


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_server_that_hangs_leaves_a_step_that_nobody_collects(asynchronous, policy):
    """As vLLM's does behind a request that can never fit."""
    config = EngineConfig(
        num_blocks=6,
        block_size=4,
        max_model_len=60,
        async_scheduling=asynchronous,
        scheduling_policy=policy,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        vllm_strict=True,
    )
    lengths = {"fits": 5, "never fits": 40, "waits": 6}
    workload = [
        RequestRecord(request_id=name, arrival_ns=index * 10**6, prompt_tokens=tokens, output_tokens=3)
        for index, (name, tokens) in enumerate(lengths.items())
    ]
    measured = Measured(config, workload)
    assert measured.recorder.unfinished == ["never fits", "waits"]
    check = measured.check()
    assert check.passed, check.differences
    assert not measured.check(executed=measured.executed[:-1]).passed


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
@pytest.mark.slow
def test_every_table_entry_and_slot_counts(mode):
    measured = measure(mode)
    index = step_with(measured.executed, decoding, after=20)
    step = measured.executed[index]
    for request, table in enumerate(step.block_tables):
        last = len(table) - 1
        for position in range(last + 1) if request == 0 else [last]:
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
