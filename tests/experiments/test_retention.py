"""``--retention`` on the command line: figures of sessions, and mistakes."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from kvtwin.experiments.sweeps.spec import read_sweep_spec
from tests.experiments.conftest import SMALL_SERVER
from tests.parts import slow_but

SWEEP = Path(__file__).parents[2] / "experiments" / "configs" / "retention.yaml"


@pytest.fixture
def chat(kvtwin, tmp_path):
    """Conversations of three turns; during the pauses others evict much of them."""
    path = tmp_path / "chat.jsonl"
    options = ["--num-prompts", "120", "--turns", "3", "--conversations-per-s", "4", "--think-time-s", "6"]
    assert kvtwin("trace", "generate", path, *options, "--max-tokens", "900", "--system-prompts", "0").code == 0
    return path


def replay_options(policy):
    return ["--num-gpu-blocks-override", "1000", "--max-model-len", "4096", "--gpu", "l4", "--retention", policy]


@pytest.mark.parametrize("policy", slow_but(["pin-until-pressure"], ["lru", "pin", "ttl=2", "pin-until-pressure"]))
def test_figures_of_sessions_agree_with_the_tables(kvtwin, chat, tmp_path, policy):
    assert kvtwin("replay", chat, *replay_options(policy), "--out", tmp_path / "run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    requests = pyarrow.parquet.read_table(tmp_path / "run" / "requests.parquet").to_pandas()
    steps = pyarrow.parquet.read_table(tmp_path / "run" / "steps.parquet").to_pandas()
    later = requests[requests.pause_ns >= 0]
    assert set(read_sweep_spec(SWEEP).columns) <= set(summary)
    assert summary["retention"] == policy
    assert summary["later_turns"] == len(later) == 80
    assert summary["history_tokens"] == later.history_tokens.sum() > 0
    found = later[["hit_tokens", "history_tokens"]].min(axis=1)
    assert summary["history_hit_tokens"] == found.sum()
    assert 0.0 < summary["history_survival"] == found.sum() / later.history_tokens.sum() < 1.0
    buckets = summary["survival_by_pause"]
    assert sum(bucket["turns"] for bucket in buckets) == 80
    for bucket in buckets:
        inside = later[later.pause_ns >= bucket["pause_from_s"] * 1e9]
        inside = inside if bucket["pause_to_s"] is None else inside[inside.pause_ns < bucket["pause_to_s"] * 1e9]
        assert bucket["turns"] == len(inside) > 0
        assert bucket["survival"] == found[inside.index].sum() / inside.history_tokens.sum()
    first = requests[requests.pause_ns < 0]
    assert summary["mean_queue_ms_first_turns"] == pytest.approx(
        (first.first_scheduled_ns - first.arrival_ns).mean() / 1e6
    )
    assert summary["mean_ttft_ms_later_turns"] == pytest.approx((later.first_token_ns - later.arrival_ns).mean() / 1e6)
    assert summary["pinned_blocks_peak"] == steps.pinned_blocks.max()
    assert (summary["pinned_blocks_mean"] > 0) == (policy != "lru")
    assert (summary["pins_released_under_pressure"] > 0) == (policy == "pin-until-pressure")


@pytest.mark.slow
def test_lines_of_the_report(kvtwin, chat):
    plain = kvtwin("replay", chat, *replay_options("lru")).out
    pinned = kvtwin("replay", chat, *replay_options("pin")).out
    for out in (plain, pinned):
        assert "History still cached at next turn (%):" in out
        assert "  pauses 1 to 10 s (" in out
    assert "Pinned blocks" not in plain
    assert "Pinned blocks, peak / mean:" in pinned
    assert "Pins released, forced / pressure:" in pinned
    assert "First turns, mean queue / TTFT (ms):" in pinned


def test_without_sessions_nothing_is_said_of_them(kvtwin, mooncake):
    outcome = kvtwin("replay", mooncake(), *SMALL_SERVER, "--json")
    summary = json.loads(outcome.out)
    assert (summary["later_turns"], summary["history_survival"], summary["survival_by_pause"]) == (0, None, [])
    assert summary["mean_ttft_ms_later_turns"] is None
    assert "History" not in kvtwin("replay", mooncake(), *SMALL_SERVER).out
    assert "changed nothing" not in outcome.out
    pinned = kvtwin("replay", mooncake(), *SMALL_SERVER, "--retention", "pin")
    assert "* retention pin changed nothing: no request continues a session" in pinned.out


@pytest.mark.parametrize("policy", ["fifo", "ttl", "ttl=-3", "ttl=soon"])
def test_unknown_policies(kvtwin, mooncake, policy):
    kvtwin("replay", mooncake(), *SMALL_SERVER, "--retention", policy).complains(
        "--retention: expected lru, pin, pin-until-pressure or ttl=SECONDS, got " + policy
    )


def test_pins_need_a_prefix_cache(kvtwin, mooncake):
    options = ["--retention", "pin", "--no-enable-prefix-caching"]
    kvtwin("replay", mooncake(), *SMALL_SERVER, *options).complains("--retention: pin keeps", "prefix caching is off")
