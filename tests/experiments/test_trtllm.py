"""``--server trtllm``: its flags, its sizes, and what a replay prints."""

import pytest

SMALL = ("--server", "trtllm", "--model", "Llama-3.1-8B", "--gpu", "h200", "--max-tokens=12800", "--max-seq-len=8192")


@pytest.fixture
def replay(kvtwin, mooncake):
    return lambda *options: kvtwin("replay", mooncake(), *SMALL, "--num-prompts=4", *options)


def test_a_replay_says_what_it_is_and_how_it_is_known(replay):
    done = replay("--check")
    assert done.code == 0
    assert "models TensorRT-LLM, V1 manager" in done.out
    assert done.out.count("from TensorRT-LLM's sources and tests, not run") == 2
    assert "400 x 32 tokens" in done.out


@pytest.mark.parametrize("policy", ["MAX_UTILIZATION", "STATIC_BATCH"])
def test_other_policies_serve_the_same_requests(replay, policy):
    done = replay("--capacity-scheduler-policy", policy, "--enable-chunked-prefill", "--check")
    assert done.code == 0
    assert "Successful requests" in done.out


def test_blocks_come_from_what_is_free_after_weights(kvtwin):
    done = kvtwin("size", "--server", "trtllm", "--model", "Llama-3.1-8B", "--gpu", "h200")
    assert "1 - --free-gpu-memory-fraction 0.9" in done.out
    assert "null block" not in done.out
    fewer = kvtwin("size", "--server", "trtllm", "--model", "Llama-3.1-8B", "--gpu", "h200", "--max-tokens", "200000")
    assert "6,250" in fewer.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tokens-per-block", "48"), ("--tokens-per-block", "power of two")),
        (("--tokens-per-block", "1"), ("--tokens-per-block", "power of two")),
        (("--block-size", "16"), ("--block-size", "--server vllm")),
        (("--gpu-memory-utilization", "0.9"), ("--gpu-memory-utilization", "--server vllm")),
        (("--data-parallel-size", "2"), ("--data-parallel-size", "--server vllm")),
        (("--free-gpu-memory-fraction", "1.5"), ("--free-gpu-memory-fraction", "at most 1")),
        (("--secondary-offload-min-priority", "101"), ("--secondary-offload-min-priority", "100")),
        (("--kv-cache-retention-config", "{"), ("--kv-cache-retention-config", "JSON")),
    ],
)
def test_what_cannot_be_is_told_in_one_line(replay, options, words):
    replay(*options).complains(*words)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ('{"token_end": 64}, {"token_start": 63, "token_end": 80}', "overlap"),
        ('{"token_end": 64, "priority": 101}', "priority from 0 to 100"),
        ('{"token_start": 5}, {"token_start": 80, "token_end": 81}', "last range"),
        ('{"token_start": -1, "token_end": 5}', "from 0 on"),
        ('{"token_start": "x"}', "whole number as token_start"),
        ('{"tokens": 5}', "token_start"),
        ('{"token_end": 5, "duration_ms": 0}', "durations above 0"),
    ],
)
def test_retention_ranges_that_cannot_be(replay, ranges, words):
    config = f'{{"token_range_retention_configs": [{ranges}]}}'
    replay("--kv-cache-retention-config", config).complains("--kv-cache-retention-config", words)


def test_flags_of_tensorrt_llm_are_refused_elsewhere(kvtwin, mooncake):
    kvtwin("replay", mooncake(), "--tokens-per-block", "32").complains("--tokens-per-block", "--server trtllm")


def test_windows_are_refused_by_name(kvtwin):
    done = kvtwin("size", "--server", "trtllm", "--model", "gemma-3-27b-it", "--gpu", "h200")
    done.complains("gemma-3-27b-it", "full attention alone")
