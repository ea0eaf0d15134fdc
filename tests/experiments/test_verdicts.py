"""What a run is told in words: why nothing hit, and which rate would end an overload."""

import json
import re

import pytest

from tests.experiments.conftest import SMALL_SERVER, tokens
from tests.parts import slow_but

SHARED = range(64)
OTHER = range(1000, 1064)
TIGHT = ("--num-gpu-blocks-override", "15", "--max-model-len", "224")


def image(name):
    return [{"hash": name, "offset_tokens": 0, "length_tokens": 4}]


NO_HITS = {
    "no shared prefix": ([tokens(*SHARED), tokens(*OTHER)], (), "no two prompts share a prefix"),
    "shorter than a block": (
        [tokens(*SHARED), tokens(*SHARED[:10], *OTHER)],
        (),
        "shorter than one block: the longest has 10 tokens, a block 16",
    ),
    "one block, all of the prompt": (
        [tokens(*SHARED[:16]), tokens(*SHARED[:16])],
        (),
        "the longest has 16 tokens, a block 16 (and a prompt's last token is always computed)",
    ),
    "evicted": (
        [tokens(*SHARED), *(tokens(*range(n * 1000, n * 1000 + 200)) for n in range(2, 6)), tokens(*SHARED)],
        TIGHT,
        "these blocks were evicted before reuse",
    ),
    "not computed yet": (
        [tokens(*SHARED, arrival_ns=0), tokens(*SHARED, arrival_ns=0)],
        ("--long-prefill-token-threshold", "10"),
        "but these blocks were not computed yet",
    ),
    "caching off": ([tokens(*SHARED)] * 2, ("--no-enable-prefix-caching",), "prefix caching is off"),
    "salt": ([tokens(*SHARED, cache_salt=name) for name in "ab"], (), "but their cache salts differ"),
    "LoRA": ([tokens(*SHARED, lora=name) for name in "ab"], ("--enable-lora",), "but their LoRA adapters differ"),
    "image": ([tokens(*SHARED, images=image(name)) for name in "ab"], (), "but their images differ"),
    "salt and image": (
        [tokens(*SHARED, images=image("a")), tokens(*SHARED, cache_salt="s")],
        (),
        "but their cache salts or images differ",
    ),
}


@pytest.mark.parametrize("reason", NO_HITS)
def test_why_nothing_hit(kvtwin, summary_of, native, reason):
    rows, options, words = NO_HITS[reason]
    summary = summary_of(native(*rows), *options)
    assert summary["prefix_cache_hits"] == 0
    (verdict,) = summary["verdicts"]
    assert verdict.startswith("hit rate 0: ")
    assert words in verdict
    assert f"* {verdict}\n" in kvtwin("replay", native(*rows), *SMALL_SERVER, *options).out


def test_hits_need_no_verdict(summary_of, native):
    summary = summary_of(native(tokens(*SHARED), tokens(*SHARED)))
    assert (summary["prefix_cache_hits"], summary["verdicts"]) == (48, [])


HIT_RATES = [
    "prefix_cache_hits",
    "prefix_cache_hit_rate",
    "prefix_cache_hit_rate_last_1000_requests",
    "prefix_cache_block_hit_rate",
    "requests_with_hit",
    "request_hit_rate",
]


@pytest.mark.parametrize("rows", [[{}, {}], [{"output_tokens": 0}], [{}, {"prompt_tokens": 5000}]], ids=str)
def test_lengths_alone_tell_nothing_about_hits(kvtwin, summary_of, native, rows):
    summary = summary_of(native(*rows))
    assert [summary[name] for name in HIT_RATES] == [None] * len(HIT_RATES)
    out = kvtwin("replay", native(*rows), *SMALL_SERVER).out
    section = out[out.index("KV Cache") :]
    assert section.count("unknown") >= 5
    assert not re.search(r"^(Hit|  ).*(?<!/) 0(\.0+)? *$", section.split("Evicted")[0], flags=re.MULTILINE)


def test_some_lengths_make_a_lower_bound(summary_of, native):
    summary = summary_of(native({}, tokens(*SHARED), tokens(*SHARED)))
    assert summary["prefix_cache_hit_rate"] == 48 / 168
    assert summary["verdicts"] == ["the hit rate is a lower bound: prompts known by length only (1) count as misses"]


@pytest.mark.parametrize(
    "options", slow_but([["--request-rate", "9"]], [["--rate-scale", "1.5"], ["--request-rate", "9"]])
)
def test_the_suggested_rate_ends_the_overload(kvtwin, public_trace, tmp_path, options):
    trace = public_trace("mooncake/conversation_trace.jsonl.gz")
    common = ["replay", trace, "--num-prompts", "300", "--num-gpu-blocks-override", "40000", "--json"]
    (verdict,) = json.loads(kvtwin(*common, *options).out)["verdicts"]
    offered, sustained = re.search(
        r"overload: the load is ([\d,]+) tokens/s, the server sustains ([\d,]+) tokens/s", verdict
    ).groups()
    assert int(offered.replace(",", "")) > int(sustained.replace(",", ""))
    flag, value = re.search(r"(--\S+) (\S+) would about fit", verdict).groups()
    assert flag == options[0]
    assert 0.1 < float(value) < float(options[1])
    assert json.loads(kvtwin(*common, flag, value).out)["verdicts"] == []


@pytest.mark.slow
def test_sessions_that_a_server_slows_down_are_an_overload(kvtwin, tmp_path):
    """Requests do not pile up, because each turn waits for the one before; the suggested rate ends it."""
    trace = tmp_path / "chat.jsonl"
    lengths = ["--user-tokens", "2000", "--output-tokens", "20", "--system-prompts", "0", "--turns", "4"]
    assert kvtwin("trace", "generate", trace, "--num-prompts", "400", "--think-time-s", "1", *lengths).code == 0
    common = ["replay", trace, "--num-gpu-blocks-override", "9000", "--max-num-seqs", "8", "--json"]

    def verdict_of(*options):
        verdicts = json.loads(kvtwin(*common, *options).out)["verdicts"]
        return [verdict for verdict in verdicts if verdict.startswith("overload")]

    (verdict,) = verdict_of("--session-rate", "30")
    assert verdict.startswith("overload: the server slows its sessions down. ")
    flag, value = re.search(r"(--\S+) (\S+) would about fit", verdict).groups()
    assert flag == "--session-rate"
    assert 0.5 < float(value) < 30
    assert verdict_of(flag, value) == []
    assert verdict_of("--session-rate", "inf")[-1].endswith(
        "fewer sessions at a time (--session-rate, --concurrent-sessions) would queue less"
    )
    assert verdict_of("--concurrent-sessions", "4") == []


def test_a_closed_loop_is_never_overloaded(summary_of, mooncake):
    assert summary_of(mooncake(200), "--max-concurrency", "50", "--step-time", "linear")["verdicts"] == []


def test_rejected_requests_are_no_overload(summary_of, native):
    """They never start, however low the rate is."""
    rows = [{"lora": "a", "arrival_ns": index} for index in range(50)]
    rows += [{"arrival_ns": index} for index in range(50, 52)]
    verdicts = summary_of(native(*rows), "--step-time", "roofline")["verdicts"]
    assert not any("overload" in verdict for verdict in verdicts)


@pytest.mark.slow
def test_requests_that_all_run_at_once_are_an_overload_too(kvtwin, public_trace):
    """With seats and tokens for everybody nobody waits, and yet the device falls behind."""
    options = ["--num-prompts", "1000", "--max-num-batched-tokens", "1000000", "--num-gpu-blocks-override", "2000000"]
    trace = public_trace("mooncake/conversation_trace.jsonl.gz")
    summary = json.loads(kvtwin("replay", trace, "--json", *options).out)
    assert any(verdict.startswith("overload") for verdict in summary["verdicts"])
