"""`--preemption-mode swap` and `--kv-offloading-size`: sizes, refusals, figures and time."""

import json

import pytest

from tests.experiments.conftest import tokens

SERVER = ("--max-model-len", "512", "--max-num-batched-tokens", "512", "--max-num-seqs", "8", "--block-size", "16")
BLOCK_BYTES = 2 * 32 * 8 * 128 * 2 * 16  # Llama-3.1-8B: keys and values, layers, heads, head size, bf16, tokens


@pytest.fixture
def crowded(native, kvtwin):
    """Replay four requests that together outgrow 40 blocks, twice; the summary."""
    rows = [tokens(*range(1000 * i, 1000 * i + 150), output_tokens=100, arrival_ns=0) for i in range(4)]
    rows += [row | {"arrival_ns": 60 * 10**9} for row in rows]
    trace = native(*rows)

    def run(*options):
        outcome = kvtwin("replay", trace, *SERVER, "--num-gpu-blocks-override", "41", *options, "--json", "--check")
        assert outcome.code == 0, outcome
        return json.loads(outcome.out)

    return run


@pytest.fixture
def zeros(tmp_path):
    """A step-time model in which only copies take time."""
    file = tmp_path / "zeros.yaml"
    file.write_text("model: linear\n")
    return file


def test_swapping_computes_nothing_twice(crowded):
    recompute, swap = crowded(), crowded("--preemption-mode", "swap", "--swap-space", "1")
    assert recompute["recomputed_tokens"] > 0
    assert swap["recomputed_tokens"] == swap["swap_fallbacks"] == 0
    assert swap["num_preemptions"] > 0
    assert 0 < swap["swapped_in_blocks"] <= swap["swapped_out_blocks"]
    assert swap["swapped_out_bytes"] == swap["swapped_out_blocks"] * BLOCK_BYTES
    assert swap["num_swap_blocks"] == 2**30 // BLOCK_BYTES
    assert recompute["num_swap_blocks"] == recompute["swapped_out_blocks"] == recompute["host_transfer_s"] == 0


def test_offloaded_prompts_are_hit_when_they_come_again(crowded):
    off, on = crowded(), crowded("--kv-offloading-size", "1")
    hits = on["external_prefix_cache_hits"] + on["preempted_external_prefix_cache_hits"]
    assert hits == 16 * on["loaded_blocks"]
    assert on["external_prefix_cache_hits"] > 0
    assert on["external_prefix_cache_queries"] == on["prefix_cache_queries"] - on["prefix_cache_hits"]
    assert on["prefix_cache_hits"] + on["external_prefix_cache_hits"] > off["prefix_cache_hits"]
    assert off["external_prefix_cache_queries"] == 0


@pytest.mark.parametrize("options", [["--preemption-mode", "swap"], ["--kv-offloading-size", "1"]])
def test_copies_take_the_time_of_their_bytes(crowded, zeros, options):
    summary = crowded(*options, "--step-time", zeros, "--gpu", "rtx-4090")
    copied_bytes = sum(summary[f"{what}_bytes"] for what in ("swapped_out", "swapped_in", "offloaded", "loaded"))
    assert copied_bytes > 0
    assert summary["host_transfer_s"] == pytest.approx(copied_bytes / 32e9, rel=1e-5)
    assert summary["device_busy_s"] == summary["host_transfer_s"]
    assert crowded(*options, "--step-time", "zero")["host_transfer_s"] == 0


def test_gpus_copy_their_shares_at_the_same_time(crowded, zeros):
    options = ("--preemption-mode", "swap", "--swap-space", "1", "--step-time", zeros, "-tp")
    one, four = crowded(*options, "1"), crowded(*options, "4")
    assert four["swapped_out_bytes"] == one["swapped_out_bytes"]
    assert four["num_swap_blocks"] == 4 * one["num_swap_blocks"], "--swap-space is per GPU"
    assert four["host_transfer_s"] == pytest.approx(one["host_transfer_s"] / 4, rel=1e-4)


def test_the_size_of_the_tier_is_of_all_gpus_together(crowded):
    assert crowded("--kv-offloading-size", "1", "-tp", "4")["num_offload_blocks"] == 2**30 // BLOCK_BYTES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preemption-mode", "swap", "--swap-space", "0"], "--swap-space: 0 GiB cannot hold a block"),
        (["--swap-space", "1"], "--swap-space: needs --preemption-mode swap"),
        (["--kv-offloading-size", "0"], "--kv-offloading-size: 0 GiB cannot hold a block"),
        (["--kv-offloading-size", "1000000"], "--kv-offloading-size: 1e+06 GiB are"),
        (["--kv-offloading-size", "-1"], "--kv-offloading-size"),
        (["--kv-offloading-size", "1", "--no-enable-prefix-caching"], "--kv-offloading-size: needs --enable-prefix-ca"),
        (["--kv-offloading-size", "1", "--kv-offloading-backend", "lmcache"], "--kv-offloading-backend lmcache: only"),
        (["--preemption-mode", "swap", "--gpu", "", "--step-time", "linear"], "needs --gpu"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(kvtwin, native, options, message):
    kvtwin("replay", native({}), "--num-gpu-blocks-override", "40", *SERVER, *options).complains(message)


def test_the_text_tells_what_is_switched_on(kvtwin, native):
    server = ("replay", native({}), "--num-gpu-blocks-override", "40", *SERVER)
    assert "Swapped" not in kvtwin(*server).out
    out = kvtwin(*server, "--preemption-mode", "swap", "--kv-offloading-size", "1").out
    for label in (
        "Swapped out / in (blocks):",
        "recomputed instead (preemptions):",
        "Offload tier, hit / queried tokens:",
        "Copying to and",
    ):
        assert label in out
