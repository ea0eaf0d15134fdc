"""A prediction beside its measurement: here two predictions whose step times differ by a known factor."""

from dataclasses import replace

import numpy as np
import pytest

from kvtwin.experiments.display.tables import as_text
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.paired_latencies import Pairs, paired_latencies
from kvtwin.experiments.validation.facts import DECISIONS, spread_facts, validation_facts
from kvtwin.experiments.validation.predictor import Predictor
from kvtwin.experiments.validation.runs import MeasuredRun, MeasuredServer, step_times
from kvtwin.experiments.validation.text import text_parts
from kvtwin.sim.linear import LinearStepTime
from tests.sim.measured_run import measure

STEPS = Pairs(np.array([100, 200, 0, 400]), np.array([110, 180, 5, 800]))
UNMEASURED = {"reference_ms": {}, "drift": None}
"""Of the machine, where no step was measured twice."""


@pytest.fixture
def replayed(kvtwin, tmp_path):
    """Replay a trace with steps of so many milliseconds."""

    def run(name, trace, step_ms, *options):
        step_time = tmp_path / f"{name}.yaml"
        step_time.write_text(f"model: linear\nstep_ns: {round(step_ms * 10**6)}\n")
        server = ("--max-model-len", 2048, "--num-gpu-blocks-override", 150, "--step-time", step_time)
        outcome = kvtwin("replay", trace, *server, *options, "--out", tmp_path / name)
        assert outcome.code in (0, 1), outcome
        return Run(tmp_path / name)

    return run


@pytest.fixture
def alone(native):
    """Requests that never meet: ten seconds apart, of one to nine output tokens; two have one id."""
    rows = [{"id": f"r{index}", "arrival_ns": index * 10**10, "output_tokens": index + 1} for index in range(9)]
    rows[1]["id"] = "r0"
    return native(*rows)


def test_a_factor_is_found_again(replayed, alone):
    facts = validation_facts(replayed("one", alone, 10), replayed("two", alone, 15), STEPS)
    assert facts["decisions"].keys() == DECISIONS.keys()
    assert facts["decisions"]["steps"]["measured"] >= 45
    assert facts["decisions"]["steps"]["difference"] == 0
    for name, requests in (("ttft", 9), ("tpot", 8), ("e2el", 9)):
        latency = facts["latencies"][name]
        assert latency["requests"] == requests
        for statistic in ("median", "p90", "p99"):
            assert latency[statistic]["error"] == pytest.approx(0.5)
            assert latency[statistic]["predicted_ms"] == pytest.approx(1.5 * latency[statistic]["measured_ms"])
        assert latency["request_error"] == {"median": pytest.approx(0.5), "p90": pytest.approx(0.5)}
    assert facts["latencies"]["e2el"]["median"]["measured_ms"] == pytest.approx(50)


def test_errors_of_steps_have_a_sign_and_a_size(replayed, alone):
    run = replayed("one", alone, 10)
    steps = validation_facts(run, run, STEPS)["step_time"]
    assert steps == {
        "steps": 4,
        "measured_s": 700e-9,
        "predicted_s": 1095e-9,
        "median_error": pytest.approx(0.1),
        "p90_error": pytest.approx(0.1 + 0.8 * 0.9),
        "median_signed_error": pytest.approx(0.1),
    }


def test_decisions_differ_where_times_do(replayed, mooncake):
    trace = mooncake(30)
    slow, fast = replayed("slow", trace, 300), replayed("fast", trace, 1)
    decisions = validation_facts(slow, fast, STEPS)["decisions"]
    for name, decision in decisions.items():
        assert decision["measured"] == slow.summary[name]
        assert decision["predicted"] == fast.summary[name]
        assert decision["difference"] == fast.summary[name] - slow.summary[name]
    assert decisions["steps"]["difference"] > 0
    assert decisions["num_gpu_blocks"]["difference"] == 0


def test_requests_that_one_run_did_not_serve_are_left_out(replayed, alone, native):
    one = replayed("one", alone, 10)
    two = replayed("two", native({"id": "r3", "output_tokens": 4}, {"id": "other"}, name="other.jsonl"), 10)
    pairs = paired_latencies(one, two)
    assert {name: len(times.measured) for name, times in pairs.items()} == {"ttft": 1, "tpot": 1, "e2el": 1}
    empty = validation_facts(
        one, replayed("three", native({"id": "x"}, name="x.jsonl"), 1), Pairs(np.zeros(0), np.zeros(0))
    )
    assert empty["latencies"]["ttft"]["median"] == {"measured_ms": None, "predicted_ms": None, "error": None}
    assert empty["step_time"]["median_error"] is None
    assert "None" not in as_text(
        *text_parts(empty | {"spread": {}, "machine": UNMEASURED, "checks": {}, "verdict": ""})
    )


def test_the_text_has_the_verdict_last(replayed, alone):
    run = replayed("one", alone, 10)
    checks = {"check_1": {"passed": True, "words": "all equal"}, "check_2": {"passed": False, "words": "one differs"}}
    lines = as_text(
        *text_parts(
            validation_facts(run, run, STEPS)
            | {"spread": {}, "machine": UNMEASURED, "checks": checks, "verdict": "failed: it is so"}
        )
    ).splitlines()
    assert lines[-3:] == ["check 1: passed: all equal", "check 2: FAILED: one differs", "failed: it is so"]
    labels = [line.partition(":")[0] for line in lines]
    assert [labels.index(words) for words in DECISIONS.values()] == [1, 2, 3, 4, 5]
    assert labels.index("Steps") < labels.index("TTFT, median (ms)") < labels.index("Time in steps (s)")


def test_the_picture_is_drawn_also_of_almost_nothing(replayed, alone, native, tmp_path):
    from kvtwin.experiments.pictures.figure import save_as
    from kvtwin.experiments.pictures.validation import validation

    one, two = replayed("one", alone, 10), replayed("two", alone, 0)
    other = replayed("three", native({"id": "x"}, name="x.jsonl"), 1)
    for index, (run, steps) in enumerate(((two, STEPS), (other, Pairs(np.zeros(0), np.zeros(0))))):
        path = tmp_path / f"{index}.png"
        save_as(validation(one, run, steps), path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_every_step_is_predicted_for_itself():
    """Also where steps are counted from 0 again, behind a warm-up."""
    model = LinearStepTime({"step_ns": 1_000, "context_token_ns": 7})
    measured = measure("sync", num_warm_up_requests=3)
    durations_ns = [model.duration_ns(decided.shape) for decided in measured.decided]
    executed = [
        replace(one, duration_ns=duration_ns) for one, duration_ns in zip(measured.executed, durations_ns, strict=True)
    ]
    assert [decided.index for decided in measured.decided].count(0) == 2
    server = MeasuredServer(measured.decided, executed, [])
    times = step_times(MeasuredRun({}, [server], [], None), [Predictor(model, None)])
    assert times.measured.tolist() == times.predicted.tolist()
    assert len(set(times.measured.tolist())) > 10


def test_measurements_outside_of_what_other_step_times_would_give_are_told():
    spread = {"num_preemptions": (3, 5), "mean_ttft_ms": (10.0, 20.0), "mean_tpot_ms": None}
    facts = spread_facts({"num_preemptions": 5, "mean_ttft_ms": 21.5, "mean_tpot_ms": None}, spread)
    assert facts == {
        "num_preemptions": {"measured": 5, "low": 3, "high": 5, "inside": True},
        "mean_ttft_ms": {"measured": 21.5, "low": 10.0, "high": 20.0, "inside": False},
    }
