"""Sessions and the blocks that are kept for them, on the clock: when pins end, and what is recorded of histories."""

import pytest

from kvtwin.sim.recording import NEVER
from kvtwin.workloads.distributions import LogNormal
from kvtwin.workloads.generator import SyntheticWorkload
from tests.parts import slow_but
from tests.sim.test_serving import both_loops, column, record, serve, simulation


def turns(session, *prompts, pause_ns=1_000, start_ns=0, output=1):
    """Turns of known tokens; the first at ``start_ns``, each later one ``pause_ns`` after the answer before it."""
    return [
        record(
            f"{session}{index}",
            start_ns,
            prompt=len(prompt),
            output=output,
            token_ids=prompt,
            session=session,
            think_time_ns=pause_ns if index else None,
        )
        for index, prompt in enumerate(prompts)
    ]


def others(*times_ns, prompt=16 * 9):
    return [record(f"other{time_ns}", time_ns, prompt=prompt) for time_ns in times_ns]


def workload_of(*parts):
    return sorted((record for part in parts for record in part), key=lambda each: each.arrival_ns)


@both_loops
@pytest.mark.parametrize(
    ("policy", "hit"),
    [("lru", 0), ("pin", 48), ("ttl=1.1e-6", 48), ("ttl=0.9e-6", 0), ("pin-until-pressure", 48)],
)
def test_a_pause_of_1000_ns(policy, hit, asynchronous):
    """Others evict 9 blocks at a time from a pool of 16, while a session of 3 blocks pauses and behind its pause."""
    prompt = list(range(50))
    workload = workload_of(turns("s", prompt, [*prompt, 1, 2]), others(300, 600, 1_000, 1_001))
    recorder = serve(workload, usable=16, asynchronous=asynchronous, retention=policy)
    assert column(recorder, "hit_tokens")["s1"] == hit
    assert column(recorder, "history_tokens")["s1"] == 48
    assert column(recorder, "pause_ns")["s1"] == 1_000
    assert max(recorder.steps.pinned_blocks) == (0 if policy == "lru" else 3)
    assert not recorder.scheduler.retention.pins


def test_the_last_turn_is_not_pinned_however_it_ends():
    """It may be refused by the front end, or be alone."""
    prompt = list(range(50))
    refused = [*turns("r", prompt), record("r1", prompt=9, output=0, session="r", think_time_ns=1_000)]
    workload = workload_of(refused, turns("alone", [7] * 40), others(500, 5_000))
    simulated = simulation(retention="pin")
    recorder = simulated.run(workload)
    assert recorder.refused == {"zero output": 1}
    assert not recorder.scheduler.retention.pins
    pinned = dict(zip(recorder.steps.scheduled_ns, recorder.steps.pinned_blocks, strict=True))
    assert pinned[500] == 3
    assert pinned[5_000] == 0


def test_histories_are_what_a_turn_repeats_of_the_turn_before_it():
    long = list(range(100))
    workload = turns("s", long, [*long[:70], *range(500, 540)], [9] * 40, [9] * 32, [9] * 33)
    recorder = serve(workload)
    assert column(recorder, "history_tokens") == {"s0": 0, "s1": 64, "s2": 0, "s3": 16, "s4": 32}
    assert column(recorder, "pause_ns") == {"s0": NEVER, "s1": 1_000, "s2": 1_000, "s3": 1_000, "s4": 1_000}


def test_a_turn_of_two_blocks_can_hit_but_one():
    """The last prompt token is always computed; of the turn before, the last token never was."""
    recorder = serve(turns("s", [9] * 31, [9] * 32, [9] * 48))
    assert column(recorder, "history_tokens") == {"s0": 0, "s1": 16, "s2": 32}
    assert column(recorder, "hit_tokens") == {"s0": 0, "s1": 16, "s2": 32}


def test_a_history_may_lie_in_the_warm_up():
    workload = turns("s", [9] * 31, [9] * 48, [9] * 64)
    recorder = serve(workload, num_warm_up_requests=1)
    assert column(recorder, "history_tokens") == {"s1": 16, "s2": 48}
    assert column(recorder, "pause_ns") == {"s1": 1_000, "s2": 1_000}


def test_pins_given_up_in_the_warm_up_do_not_count():
    """The pin of three blocks gives way to another prompt, behind which nothing is missing."""
    workload = workload_of(turns("s", list(range(50)), [7] * 16), others(300, prompt=16 * 15))
    for num_warm_up_requests, released in ((1, 1), (2, 0)):
        served = serve(workload, usable=16, retention="pin-until-pressure", num_warm_up_requests=num_warm_up_requests)
        assert served.scheduler.retention.num_pressure_releases == released


@pytest.mark.parametrize("policy", slow_but(["ttl=20"], ["lru", "pin", "ttl=20", "pin-until-pressure"]))
@pytest.mark.slow
def test_histories_of_conversations(policy):
    """Where memory never binds every history survives whole; histories are the same in a small pool."""
    workload = SyntheticWorkload(
        num_requests=30,
        conversations_per_s=1.0,
        user_tokens=LogNormal(60, 0.8, 1, 400),
        output_tokens=LogNormal(40, 0.8, 1, 200),
        turns=LogNormal(4, 0.3, 1, 6),
        think_time_ms=LogNormal(8_000, 0.8, 0, 60_000),
    )
    step = {"step_time": None, "max_model_len": 4_000, "retention": policy}
    endless = serve(list(workload), usable=20_000, check=False, **step)
    small = serve(list(workload), usable=300, **step)
    history = column(endless, "history_tokens")
    assert sum(history.values()) > 0
    assert all(column(endless, "hit_tokens")[name] >= tokens for name, tokens in history.items())
    assert column(small, "history_tokens") == history
    assert not small.scheduler.retention.pins
