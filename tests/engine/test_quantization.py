"""Bytes of quantised weights, and the dtype of the KV cache, from ``quantization_config`` of vLLM's methods."""

import pytest

from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.engine.sizing.hf_quantization import read_quantization, same_method
from kvtwin.engine.sizing.model_shape import ModelConfigError

MODEL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}
MATRICES = 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096)
REST = (2 * 1000 * 1024 + 5 * 1024) * 2


def group(bits, kind="int", **fields):
    weights = {"num_bits": bits, "type": kind, **fields}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@pytest.mark.parametrize(
    ("quantization", "bytes_per_weight"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": False}, 0.5 + 2 / 64),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}, 0.5 + 2 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": False}, 1.0),
        ({"quant_method": "auto-round", "bits": 2, "group_size": 32, "sym": False}, 0.25 + 2.25 / 32),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
        ({"quant_method": "fp8", "activation_scheme": "static"}, 1.0),
        ({"quant_method": "fbgemm_fp8"}, 1.0),
        (group(4, group_size=128, symmetric=True, strategy="group"), 0.5 + 2 / 128),
        (group(4, group_size=32, symmetric=False, strategy="group"), 0.5 + 2.5 / 32),
        (group(8, "float", strategy="channel"), 1.0),
        (group(8, "float", strategy="block", block_structure=[128, 128]), 1 + 4 / 16384),
        (group(4, "float", group_size=16, strategy="tensor_group"), 0.5 + 1 / 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 0.5 + 1 / 16),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}, 0.5 + 1 / 16),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
            },
            1,
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}},
            },
            0.5 + 1 / 32,
        ),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_data": {"group_size": 64}}},
            },
            0.5 + 4 / 64,
        ),
        ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64),
        (
            {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}},
            0.5 + 4 / 64,
        ),
    ],
    ids=str,
)
def test_weights_follow_bits_and_groups(quantization, bytes_per_weight):
    shape = read_hf_config({**MODEL, "quantization_config": quantization}, "test")
    assert shape.weight_bytes() == pytest.approx(MATRICES * bytes_per_weight + REST, rel=1e-6)


@pytest.mark.parametrize(
    "left_out",
    [
        {"modules_to_not_convert": ["self_attn"]},
        {"ignored_layers": ["re:.*self_attn.*"]},
        {"modules_to_not_convert": [f"model.layers.{index}.self_attn" for index in range(2)]},
        {"modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    ],
    ids=str,
)
def test_modules_that_are_left_out_have_16_bits(left_out):
    shape = read_hf_config({**MODEL, "quantization_config": {"quant_method": "fp8", **left_out}}, "test")
    attention = 2 * 4 * 1024 * 1024
    assert shape.weight_bytes() == attention * 2 + (MATRICES - attention) + REST


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({**group(8, "float"), "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, "fp8"),
        (group(8, "float"), None),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None),
    ],
    ids=str,
)
def test_the_kv_cache_that_a_checkpoint_asks_for(quantization, dtype):
    assert read_quantization({"quantization_config": quantization}, "test").kv_cache_dtype == dtype


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "magic"}, "quant_method 'magic' is not known"),
        ({"quant_method": "awq"}, "quantization_config: config.json has no bits"),
        ({"quant_method": "gptq", "bits": 0}, "bits must be a positive whole number, not 0"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two positive whole numbers"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, "quant_algo 'FP3' is not one of"),
        ({"quant_method": 4}, "quant_method must be a name"),
        (7, "quantization_config must be an object"),
    ],
    ids=str,
)
def test_what_cannot_be_sized_is_refused_by_name(quantization, message):
    with pytest.raises(ModelConfigError, match=message):
        read_quantization({"quantization_config": quantization}, "test")


def test_names_of_one_method():
    assert same_method("awq_marlin", "awq")
    assert same_method("gptq_marlin", "gptq")
    assert not same_method("awq", "gptq")
