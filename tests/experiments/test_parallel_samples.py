"""n samples of a prompt, from the command line."""

import json
from pathlib import Path

import pytest

from tests.experiments.conftest import SMALL_POOL, tokens

CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"


def prompts(native, **changes):
    return native(*(tokens(*range(100 * i, 100 * i + 40), output_tokens=20, **changes) for i in range(4)))


@pytest.mark.parametrize("way", ["prefix", "fork"])
def test_the_trace_or_the_option_asks(summary_of, native, way):
    asked = [
        summary_of(prompts(native, n=3), "--parallel-sampling", way, "--step-time", "linear"),
        summary_of(prompts(native), "--parallel-sampling", way, "--parallel-samples", 3, "--step-time", "linear"),
    ]
    for summary in asked:
        summary.pop("date")
    assert asked[0] == asked[1]
    assert asked[0]["completed"] == asked[0]["num_prompts"] == 4
    assert asked[0]["completed_samples"] == 12
    assert (asked[0]["total_input_tokens"], asked[0]["total_output_tokens"]) == (160, 240)
    assert asked[0]["max_concurrent_requests"] == 1
    assert asked[0]["prefix_cache_hits"] == (0 if way == "fork" else 4 * 2 * 32)
    assert asked[0]["num_forks"] == (8 if way == "fork" else 0)


def test_a_fork_that_never_happens_is_told(kvtwin, native):
    line = "* parallel sampling fork changed nothing"
    options = (*SMALL_POOL, "--parallel-sampling", "fork")
    assert line in kvtwin("replay", prompts(native), *options, "--step-time", "zero").out
    assert line not in kvtwin("replay", prompts(native, n=3), *options, "--step-time", "linear").out


def test_latencies_are_of_the_first_token_and_the_last_end(summary_of, native):
    """Two seats for four samples: the last pair begins when the first has ended."""
    trace = native(tokens(*range(40), output_tokens=10, n=4))
    options = ("--step-time", "linear", "--max-num-seqs", 2)
    summary, alone = summary_of(trace, *options), summary_of(trace, *options, "--parallel-samples", 1)
    assert summary["mean_ttft_ms"] == pytest.approx(alone["mean_ttft_ms"], rel=0.1)
    assert summary["mean_e2el_ms"] > 1.9 * alone["mean_e2el_ms"]
    assert summary["mean_tpot_ms"] < 1.1 * alone["mean_tpot_ms"]
    assert summary_of(trace, *options, "--goodput", "e2el:1e9", "tpot:1e9")["request_goodput"] > 0
    assert summary_of(trace, *options, "--goodput", "tpot:0.001")["request_goodput"] == 0


def test_forks_take_fewer_blocks_where_nothing_is_cached(summary_of, native):
    for caching, fewer in (("--enable-prefix-caching", 0), ("--no-enable-prefix-caching", 7 * 2)):
        options = (prompts(native), caching, "--parallel-samples", 8)
        prefix, fork = (summary_of(*options, "--parallel-sampling", way) for way in ("prefix", "fork"))
        assert prefix["kv_cache_peak_used_blocks"] - fork["kv_cache_peak_used_blocks"] == fewer


def test_forks_are_in_the_text(kvtwin, native):
    options = ("--max-model-len", 4096, "--num-gpu-blocks-override", 2000, "--parallel-samples", 2)
    assert (
        "Forked samples / copied blocks:          4 / 4"
        in kvtwin("replay", prompts(native), *options, "--parallel-sampling", "fork", "--check").out
    )
    assert "Forked" not in kvtwin("replay", prompts(native), *options).out


def test_a_verdict_knows_that_forks_look_nothing_up(summary_of, native):
    summary = summary_of(prompts(native), "--parallel-samples", 2, "--parallel-sampling", "fork")
    assert summary["verdicts"] == ["hit rate 0: no two prompts share a prefix"]
    unknown = summary_of(native({}, {}), "--parallel-samples", 2, "--parallel-sampling", "fork")
    assert unknown["prefix_cache_hits"] is None
    known = summary_of(native({}, {}), "--parallel-samples", 2)
    assert known["prefix_cache_hits"] == 2 * 32


def test_inspect_counts_what_samples_share(kvtwin, native):
    facts = json.loads(kvtwin("trace", "inspect", prompts(native, n=3), "--json").out)
    assert facts["num_further_samples"] == 8
    assert facts["sharing"]["queried_tokens"] == 4 * 3 * 40
    assert facts["sharing"]["hit_tokens"] == 4 * 2 * 32
    lengths = json.loads(kvtwin("trace", "inspect", native({"n": 2}), "--json").out)
    assert lengths["sharing"]["hit_tokens"] == 32


def test_generated_prompts_ask_for_samples(kvtwin, tmp_path, summary_of):
    trace = tmp_path / "w.jsonl"
    assert kvtwin("trace", "generate", trace, "--num-prompts", 5, "--parallel-samples", 3).code == 0
    assert summary_of(trace)["completed_samples"] == 15


@pytest.mark.parametrize("number", ["0", "16385", "many"])
def test_bad_numbers(kvtwin, native, number):
    kvtwin("replay", native({}), "--parallel-samples", number).complains("--parallel-samples", "1 to 16384")


def test_a_bad_number_in_a_trace(kvtwin, native):
    kvtwin("replay", native({"n": 0})).complains(":2: n: expected an integer of at least 1")
    kvtwin("replay", native({"n": 20_000})).complains(":2: n: expected at most 16384 samples, got 20000")


def test_the_sweep_of_the_documents_is_understood(kvtwin):
    outcome = kvtwin("sweep", CONFIGS / "forks.yaml", "--dry-run")
    assert outcome.code == 0
    assert outcome.out.count("kvtwin replay") == 16
