"""`--server sglang` as a user meets it: its flags, its size, whole replays, and what is refused."""

import json

import pytest

from kvtwin.engine.sglang.sizing import default_chunk_tokens, default_max_running_requests, default_memory_fraction
from kvtwin.experiments.command_line.entry import main

GIB = 1 << 30


def printed(capsys, *words, code=0):
    assert main(list(words)) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def test_defaults_by_the_size_of_the_gpu():
    assert [default_chunk_tokens(gib * GIB) for gib in (16, 24, 48, 80, 140, 180)] == [
        *(2048, 4096, 4096, 8192, 8192, 16384)
    ]
    # MiB: 512 + 1.5 * 8192 + 128 + 2 * 256 + 8 * 58 of 143,360
    assert default_memory_fraction(140 * GIB, 8192, 1, 1) == round(1 - 13904 / 143360, 3)
    assert default_memory_fraction(80 * GIB, 2048, 1, 1) == round(1 - 10240 / 81920, 3)
    assert [default_max_running_requests(tokens, 131072) for tokens in (1000, 911_621, 9_000_000)] == [2048, 3561, 4096]


@pytest.mark.slow
def test_size_is_what_the_fraction_leaves_beside_the_weights(capsys):
    facts = json.loads(printed(capsys, "size", "--server", "sglang", "--mem-fraction-static", "0.8", "--json"))
    weights = 2 * 8_030_261_248
    total = round(139.80 * GIB)
    assert abs(facts["num_blocks"] - 1 - (0.8 * total - weights) // 131_072) <= 1
    pages = json.loads(printed(capsys, "size", "--server", "sglang", "--page-size", "64", "--json"))
    assert pages["num_blocks"] - 1 == 911_621 // 64


@pytest.mark.slow
def test_a_replay_says_whose_rules_it_follows_and_how_they_are_known(capsys):
    text = printed(capsys, "replay", "demo", "--server", "sglang", "--num-prompts", "20", "--quiet")
    assert "KV Cache (SGLang 0.5.23)" in text
    assert "scheduling from SGLang's sources, not run; its radix cache was run" in text
    assert "Usable blocks:                           911621 x 1 tokens" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--block-size", "16"], "--block-size: a flag of --server vllm, and the server is sglang"),
        (["--max-model-len", "9"], "--max-model-len: a flag of --server vllm, and the server is sglang"),
        (["--radix-eviction-policy", "tlru"], "got tlru, which is not modelled"),
        (["--schedule-policy", "hrrn"], "got hrrn, which is not modelled"),
        (["--schedule-policy", "x"], "--schedule-policy: expected fcfs, lpm, got x"),
        (["--disable-radix-cache"], "--disable-radix-cache: a server without prefix caching is not modelled"),
        (["--enable-mixed-chunk"], "--enable-mixed-chunk: mixing decodes into prefill batches is not modelled"),
        (["--mem-fraction-static", "1.5"], "--mem-fraction-static: expected a number above 0 and at most 1"),
        (["--mem-fraction-static", "0.05"], "--mem-fraction-static 0.05 of 139.80 GiB leaves no room for a KV cache"),
        (["--context-length", "9000000"], "--context-length 9000000 is more than the model's 131072 tokens"),
        (["--model", "gpt-oss-20b"], "--server sglang models full attention alone"),
    ],
)
def test_what_cannot_be_is_one_line(capsys, words, reason):
    error = printed(capsys, "replay", "demo", "--server", "sglang", *words, code=2)
    assert reason in error
    assert error.count("\n") == 1


def test_what_becomes_of_single_pages_is_not_reported(capsys, tmp_path):
    for flag in ("--events", "--kv-events"):
        words = ["replay", "demo", "--server", "sglang", flag, "--out", str(tmp_path / "run")]
        assert f"{flag}: what becomes of single pages is not reported" in printed(capsys, *words, code=2)
        assert not (tmp_path / "run").exists()


def test_flags_of_sglang_are_refused_for_vllm(capsys):
    assert "--page-size: a flag of --server sglang" in printed(capsys, "replay", "demo", "--page-size", "4", code=2)


@pytest.mark.slow
def test_a_curve_is_of_pages_and_a_limit_has_the_fraction(capsys):
    words = ["demo", "--server", "sglang", "--page-size", "16", "--at", "2000", "--json"]
    facts = json.loads(printed(capsys, "curve", *words))
    vllm = json.loads(printed(capsys, "curve", "demo", "--at", "2000", "--json"))
    assert facts["points"] == vllm["points"]
