"""``kvtwin replay --speculative-config``: what it takes, what it refuses, what it prints."""

import json

import pytest

SYNTHETIC = {"rejection_sample_method": "synthetic"}
BASIS = {"method": "ngram", "num_speculative_tokens": 3}


def config(**changes):
    return json.dumps({key: value for key, value in (BASIS | changes).items() if value is not None})


def rates(*values, **changes):
    return config(**SYNTHETIC, synthetic_acceptance_rates=list(values), **changes)


def test_right_drafts_quarter_the_decode_steps(native, summary_of):
    trace = native({"output_tokens": 41})
    plain = summary_of(trace)
    summary = summary_of(trace, "--speculative-config", rates(1, 1, 1))
    assert "spec_decode_num_drafts" not in plain
    assert {key: summary[key] for key in summary if key.startswith("spec_decode")} == {
        "spec_decode_acceptance_rate": 100.0,
        "spec_decode_acceptance_length": 4.0,
        "spec_decode_num_drafts": 10,
        "spec_decode_draft_tokens": 30,
        "spec_decode_accepted_tokens": 30,
        "spec_decode_per_position_acceptance_rates": [1.0, 1.0, 1.0],
    }
    assert plain["steps"] - summary["steps"] == 40 - 10
    assert summary["total_output_tokens"] == plain["total_output_tokens"] == 41


def test_wrong_drafts_only_cost_tokens(native, summary_of):
    trace = native(*({"output_tokens": 20 + index} for index in range(5)))
    plain = summary_of(trace)
    summary = summary_of(trace, "--speculative-config", rates(0, 0, 0))
    assert summary["total_output_tokens"] == plain["total_output_tokens"]
    assert summary["spec_decode_accepted_tokens"] == summary["recomputed_tokens"] == 0
    assert summary["scheduled_tokens"] > plain["scheduled_tokens"]


def test_acceptance_is_near_the_rates_and_the_same_whatever_the_scheduler_does(native, summary_of):
    trace = native(*({"arrival_ns": 0, "output_tokens": 400} for _ in range(20)))
    option = ("--speculative-config", rates(0.8, 0.5, 0.1))
    summary = summary_of(trace, *option)
    assert summary["spec_decode_per_position_acceptance_rates"] == pytest.approx([0.8, 0.5, 0.1], abs=0.04)
    assert summary_of(trace, *option, "--max-num-seqs", "2")["spec_decode_accepted_tokens"] == pytest.approx(
        summary["spec_decode_accepted_tokens"], rel=0.01
    )
    assert summary_of(trace, *option, "--seed", "7")["spec_decode_num_drafts"] != summary["spec_decode_num_drafts"]


def test_a_length_fills_positions_from_the_front(native, summary_of):
    trace = native({"output_tokens": 41})
    option = config(**SYNTHETIC, synthetic_acceptance_length=3)
    assert summary_of(trace, "--speculative-config", option)["spec_decode_per_position_acceptance_rates"] == [1, 1, 0]


def test_a_workload_may_tell_the_counts(native, summary_of):
    trace = native({"output_tokens": 12, "accepted_drafts": [3, 0, 9, 1]})
    summary = summary_of(trace, "--speculative-config", config(), "--no-async-scheduling")
    # 1 token, then 4, 1, 4, 2: the twelfth is the last
    assert (summary["spec_decode_num_drafts"], summary["spec_decode_accepted_tokens"]) == (4, 3 + 0 + 3 + 1)
    silent = native({"output_tokens": 12, "accepted_drafts": [1]}, {}, name="silent.jsonl")
    with pytest.raises(AssertionError, match="accepted_drafts: missing"):
        summary_of(silent, "--speculative-config", config())


def test_the_text_names_what_has_no_effect(kvtwin, native):
    option = rates(0.5, 0.25, 0, method="qwen3_next_mtp", model="some/drafter", prompt_lookup_max=4)
    out = kvtwin("replay", native({"output_tokens": 9}), "--step-time", "zero", "--speculative-config", option).out
    assert (
        "speculation: mtp, 3 drafts, accepted 0.5, 0.25, 0; drafting takes no time; no effect: prompt_lookup_max" in out
    )
    assert "Acceptance length:" in out
    assert "  Position 2:" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ngram", ["expected a JSON object", "ngram"]),
        ("[1]", ["expected a JSON object"]),
        (config(method=None), ["method: expected one of ngram"]),
        (config(method="bogus"), ["method: expected one of", "bogus"]),
        (config(num_speculative_tokens=0), ["num_speculative_tokens: expected at least 1, got 0"]),
        (config(num_speculative_tokens="3"), ["num_speculative_tokens: expected a whole number"]),
        (config(zzz=1), ["'zzz' is not a key of vLLM"]),
        (config(parallel_drafting=True), ["parallel_drafting is not modelled"]),
        (config(disable_eagle_block_drop=1), ["disable_eagle_block_drop: expected true or false"]),
        (config(rejection_sample_method="x"), ["rejection_sample_method: expected standard or synthetic"]),
        (config(**SYNTHETIC), ["needs one of synthetic_acceptance_rates and"]),
        (config(synthetic_acceptance_length=2), ["synthetic_acceptance_length: needs"]),
        (config(**SYNTHETIC, synthetic_acceptance_length=5), ["expected 1 to 4, got 5"]),
        (rates(0.5, 0.4), ["expected 3 rates from 0 to 1"]),
        (rates(0.5, 0.4, 0.6), ["none above the one before"]),
        (rates(0.5, 0.4, float("nan")), ["expected 3 rates"]),
        (rates(0.5, 0.4, 0.3, method="suffix"), ["add --no-async-scheduling"]),
        (config(), ["accepted_drafts: missing"]),
    ],
)
def test_mistakes_are_told_in_one_line(kvtwin, native, text, words):
    kvtwin("replay", native({}), "--step-time", "zero", "--speculative-config", text).complains(*words)
