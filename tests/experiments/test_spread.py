"""How far figures are apart with other step times, and with other step-time models."""

import json

import pytest

import kvtwin as kv
from tests.parts import slow_but

SERVER = ("--num-prompts", "2", "--gpu", "rtx-4090", "--max-model-len", "4096", "--num-gpu-blocks-override", "300")
TWO = ("--data-parallel-size", "2")
LINEAR = ("--step-time", "linear")


@pytest.fixture
def slow_steps(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text("model: linear\nstep_ns: 50000000\n")
    return path


@pytest.mark.parametrize("replicas", slow_but([TWO], [(), TWO, ("--replicas", "replicas.yaml")]))
def test_latencies_of_a_run_lie_between_those_with_other_step_times(kvtwin, tmp_path, monkeypatch, replicas):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "replicas.yaml").write_text("- {}\n- {num-gpu-blocks-override: 280}\n")
    words = ("replay", "demo", *SERVER, *LINEAR, *replicas)
    summary = json.loads(kvtwin(*words, "--spread", "--json").out)
    alone = json.loads(kvtwin(*words, "--json").out)
    assert {name: value for name, value in summary.items() if name != "spread"} == alone | {"date": summary["date"]}
    low, high = summary["spread"]["mean_tpot_ms"]
    assert low <= 0.81 * summary["mean_tpot_ms"]
    assert 1.19 * summary["mean_tpot_ms"] <= high


def test_a_run_that_is_kept_has_its_spread(tmp_path):
    run = kv.replay("demo", num_prompts=2, max_model_len=4096, spread=True, out=tmp_path / "run", progress=False)
    assert run.summary["spread"]["num_preemptions"] == (0, 0)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["spread"]["num_preemptions"] == [0, 0]


def test_two_step_time_models_stand_side_by_side(kvtwin, slow_steps):
    both = ("replay", "demo", *SERVER, *LINEAR, "--step-time", slow_steps)
    by_name = json.loads(kvtwin(*both, "--json").out)["step_times"]
    assert list(by_name) == ["linear", str(slow_steps)]
    for name, summary in by_name.items():
        alone = json.loads(kvtwin("replay", "demo", *SERVER, "--step-time", name, "--json").out)
        assert summary | {"date": ""} == alone | {"date": ""}
    lines = kvtwin(*both).out.splitlines()
    tpot = next(line for line in lines if line.startswith("Mean TPOT"))
    assert tpot.split()[3:] == [f"{summary['mean_tpot_ms']:.1f}" for summary in by_name.values()]


@pytest.mark.slow
def test_both_have_their_spread_and_their_heading(kvtwin):
    both = ("replay", "demo", *SERVER, *LINEAR, "--step-time", "roofline", "--spread")
    low, high = json.loads(kvtwin(*both, "--json").out)["step_times"]["linear"]["spread"]["duration"]
    lines = kvtwin(*both).out.splitlines()
    assert f"({low:.1f} to {high:.1f})" in next(line for line in lines if line.startswith("Duration"))
    assert [line.split("step time ")[1] for line in lines if line.startswith("server ")] == [
        "linear, async scheduling",
        "roofline, async scheduling",
    ]


def test_what_nothing_is_known_of_has_a_dash(kvtwin, tmp_path, slow_steps):
    (tmp_path / "azure.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,100,10\n")
    words = ("replay", tmp_path / "azure.csv", "--max-model-len", "4096", "--num-gpu-blocks-override", "300")
    hits = next(
        line for line in kvtwin(*words, *LINEAR, "--step-time", slow_steps).out.splitlines() if line.startswith("Hit ")
    )
    assert hits.split() == ["Hit", "tokens:", "-", "-"]


def test_only_a_replay_has_other_step_times(kvtwin, tmp_path, slow_steps):
    words = ("replay", "demo", *SERVER, *LINEAR, "--step-time", slow_steps)
    kvtwin(*words, "--out", tmp_path / "run").complains("--out: not with several step-time models", "kvtwin sweep")
    assert not (tmp_path / "run").exists()
    kvtwin(*words[:-1], "nowhere.yaml").complains("--step-time: expected roofline, aic, zero, linear or a YAML file")
    (tmp_path / "sweep.yaml").write_text("trace: demo\noptions: {spread: true}\n")
    kvtwin("sweep", tmp_path / "sweep.yaml").complains("--spread: only for `kvtwin replay`")
    for command in ("limit", "explain", "validate"):
        kvtwin(command, "demo", "--spread").complains("--spread: only for `kvtwin replay`")
