"""Drafters take memory: their layers join the cache's groups, their weights the budget."""

import json
from pathlib import Path

import pytest

QWEN = {
    "model_type": "qwen3_5",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262144,
    "vocab_size": 248320,
    "intermediate_size": 17408,
    "dtype": "bfloat16",
}
"""Qwen3.5-27B."""

EAGLE3 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "max_position_embeddings": 2048,
    "vocab_size": 128256,
    "draft_vocab_size": 32000,
    "dtype": "float16",
}
"""EAGLE3-LLaMA3.1-Instruct-8B."""


def speculation(method, **others):
    return ("--speculative-config", json.dumps({"method": method, "num_speculative_tokens": 2, **others}))


@pytest.fixture
def sized(kvtwin):
    """What `kvtwin size --json` says of a model in 20 GiB, or on a GPU."""

    def run(model, *words, memory=("--kv-cache-memory-bytes", "20GiB")):
        outcome = kvtwin("size", "--model", model, "--max-model-len", 8192, *memory, *words, "--json")
        assert outcome.code == 0, outcome
        return json.loads(outcome.out)

    return run


@pytest.fixture
def config(tmp_path):
    """Write a config.json."""

    def write(values, name="config.json") -> Path:
        (tmp_path / name).write_text(json.dumps(values))
        return tmp_path / name

    return write


def groups(data):
    return [(group["kind"], group["block_size"], len(group["layers"])) for group in data["groups"]]


def drafter_bytes(data):
    (budget,) = data["budgets"]
    return sum(item["bytes"] for item in budget["items"] if item["name"] == "drafter's weights")


def test_mtp_layers_join_full_attention_and_blocks_grow_with_the_drafts(sized, config):
    """Blocks of 1568 and, with two drafts, 1600 tokens: start-up logs of Qwen3.5-27B, tensor parallel 2, fp8 cache."""
    words = ("-tp", 2, "--gpu", "l40s", "--kv-cache-dtype", "fp8", "--max-num-seqs", 64)
    model = config(QWEN)
    assert groups(sized(model, *words)) == [("mamba", 1568, 16)] * 3 + [("full_attention", 1568, 16)]
    data = sized(model, *words, *speculation("mtp"))
    assert groups(data) == [("mamba", 1600, 16)] * 3 + [("full_attention", 1600, 17)]
    assert [group["request_blocks"] for group in data["groups"]] == [4, 4, 4, 6]


def test_mtp_modules_are_as_many_as_the_checkpoint_has(sized, config):
    words = ("-tp", 2, "--kv-cache-dtype", "fp8", "--max-num-seqs", 64, *speculation("mtp"))
    assert groups(sized(config(QWEN | {"mtp_num_hidden_layers": 2}), *words))[-1] == ("full_attention", 1600, 18)
    (group,) = sized("deepseek-ai/DeepSeek-V3", *words[:2], *speculation("mtp"))["groups"]
    assert len(group["layers"]) == 62


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_an_eagle_of_unknown_sizes_is_one_layer_like_the_targets(sized, method):
    data = sized("Llama-3.1-8B", *speculation(method, model="somebody/eagle"))
    assert groups(data) == [("full_attention", 16, 33)]
    assert data["num_blocks"] == (20 << 30) // (33 * 16 * 4096)
    assert "drafter: somebody/eagle is not in the catalogue: taken for one layer like the target's" in data["notes"]


def test_eagle_beside_windows_makes_two_groups_of_13(sized):
    """gpt-oss-20b has 12 layers of windows and 12 of full attention: vLLM pads the windows to 13."""
    assert groups(sized("gpt-oss-20b", *speculation("eagle3"))) == [
        ("sliding_window", 16, 12),
        ("full_attention", 16, 13),
    ]


def test_an_eagle_of_known_sizes_is_counted(sized, config):
    drafter = str(config(EAGLE3))
    data = sized("Llama-3.1-8B", *speculation("eagle3", model=drafter), memory=("--gpu", "h100"))
    attention = 4096 * 4096 + 8192 * (4096 + 2 * 1024)  # output; q, k and v of an input of twice the width
    layer = attention + 3 * 4096 * 14336 + 2 * 4096
    fusing, head, norm = 3 * 4096 * 4096, 32000 * 4096, 4096
    assert drafter_bytes(data) == 2 * (layer + fusing + head + norm)
    assert groups(data) == [("full_attention", 16, 33)]


def test_a_draft_model_brings_all_its_layers_and_weights(sized, kvtwin):
    data = sized("Llama-3.1-8B", *speculation("draft_model", model="Llama-3.2-1B"), memory=("--gpu", "h100"))
    assert groups(data) == [("full_attention", 16, 32 + 16)]
    assert data["block_bytes"] == [16 * (32 * 4096 + 16 * 2048)]
    alone = json.loads(kvtwin("size", "--model", "Llama-3.2-1B", "--gpu", "h100", "--json").out)
    assert drafter_bytes(data) == alone["budgets"][0]["items"][0]["bytes"]


def test_dflash_shares_embedding_and_head(sized, config):
    layers = {"num_hidden_layers": 5, "model_type": "qwen3", "dflash_config": {"target_layer_ids": [1, 9, 17, 25, 33]}}
    drafter = str(config(EAGLE3 | layers))
    data = sized("Qwen3-8B", *speculation("dflash", model=drafter), memory=("--gpu", "h100"))
    assert groups(data) == [("full_attention", 16, 36 + 5)]
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096 + 2 * 128
    assert drafter_bytes(data) == 2 * (5 * layer + 5 * 4096 * 4096 + 4096)


def test_a_drafter_on_one_gpu_and_in_another_dtype(sized):
    words = ("-tp", 4)
    plain = sized("Llama-3.1-8B", *words, *speculation("eagle"))
    assert plain["block_bytes"] == [33 * 16 * 1024]
    one = sized("Llama-3.1-8B", *words, *speculation("eagle", draft_tensor_parallel_size=1))
    assert one["block_bytes"] == [(32 * 1024 + 4096) * 16]
    small = sized("Llama-3.1-8B", *words, *speculation("eagle", kv_cache_dtype="fp8"))
    assert small["block_bytes"] == [(32 * 1024 + 512) * 16]


def test_the_drafter_is_on_the_last_pipeline_rank(sized):
    data = sized("Llama-3.1-8B", "-pp", 2, *speculation("eagle"))
    assert data["block_bytes"] == [16 * 16 * 4096, 17 * 16 * 4096]


@pytest.mark.parametrize("method", ["ngram", "medusa"])
def test_what_drafts_without_layers_leaves_the_cache_alone(sized, method):
    assert groups(sized("Llama-3.1-8B", *speculation(method))) == [("full_attention", 16, 32)]


def test_a_drafter_that_is_not_known_is_not_counted_and_that_is_said(sized):
    data = sized("Llama-3.1-8B", *speculation("draft_model", model="a/b"))
    assert data["notes"][0] == (
        "drafter: a/b is not in the catalogue: its memory is not counted; give the path of its config.json as model"
    )


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"model": 3}, "model: expected a name, got 3"),
        ({"draft_tensor_parallel_size": 0}, "draft_tensor_parallel_size: expected 1 or more, got 0"),
        ({"kv_cache_dtype": "int3"}, "kv_cache_dtype: expected one of auto"),
        ({"model": "missing.json"}, "missing.json: No such file"),
    ],
)
def test_mistakes_are_one_line(kvtwin, others, words):
    size = ("size", "--model", "Llama-3.1-8B", "--kv-cache-memory-bytes", "20GiB")
    kvtwin(*size, *speculation("eagle", **others)).complains(words)


def test_a_replay_has_the_same_groups(kvtwin, native):
    words = ("--model", "gpt-oss-20b", "--num-gpu-blocks-override", 900, "--max-model-len", 2048)
    words += speculation("eagle3", rejection_sample_method="synthetic", synthetic_acceptance_length=2)
    outcome = kvtwin("replay", native({}, {}), *words, "--json", "--check")
    assert outcome.code == 0, outcome
    assert json.loads(outcome.out)["num_gpu_blocks"] == 900
