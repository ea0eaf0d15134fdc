"""Reading a config.json: what is taken from it, and one line for what cannot be executed."""

import json

import pytest

from kvtwin.gpu.decoder_config import read_decoder_config
from kvtwin.gpu.errors import DeviceError
from kvtwin.gpu.model_files import read_model_files

LLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def test_a_llama():
    config = read_decoder_config(LLAMA, "m")
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (16, 2048, 8192)
    assert (config.num_query_heads, config.num_kv_heads, config.head_dim) == (32, 8, 64)
    assert (config.vocab_size, config.max_position_tokens, config.dtype) == (128256, 131072, "bfloat16")
    assert (config.rope.theta, config.rope.divisors, config.norm_epsilon) == (500000.0, (), 1e-5)
    assert (config.tied_embeddings, config.qkv_bias, config.output_bias, config.qk_norm) == (True, False, False, False)


def test_families_differ_in_biases_norms_and_head_size():
    qwen2 = read_decoder_config({**LLAMA, "model_type": "qwen2"}, "m")
    qwen3 = read_decoder_config({**LLAMA, "model_type": "qwen3"}, "m")
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)


def test_windows_and_scalings_that_change_nothing_are_accepted():
    read_decoder_config({**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 32}, "m")
    read_decoder_config({**LLAMA, "model_type": "mistral", "sliding_window": 131072}, "m")
    read_decoder_config({**LLAMA, "layer_types": ["full_attention"] * 16}, "m")
    assert read_decoder_config({**LLAMA, "rope_scaling": {"type": "default"}}, "m").rope.divisors == ()


REFUSED = {
    "model_type": ({"model_type": "gpt_oss"}, "m: model_type must be one of llama"),
    "no model_type": ({"model_type": None}, "m: model_type must be one of llama"),
    "no size": ({"hidden_size": None}, "m: config.json has no hidden_size"),
    "text for a number": ({"intermediate_size": "8192"}, "m: intermediate_size must be a positive whole number"),
    "window": ({"sliding_window": 4096}, "m: layer 0 has sliding window"),
    "window by default": ({"model_type": "mistral"}, "m: layer 0 has sliding window"),
    "window in some layers": (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 4},
        "m: max_window_layers 4",
    ),
    "chunks": ({"attention_chunk_size": 64}, "m: layer 0 has chunked local attention"),
    "experts": ({"num_local_experts": 8, "num_experts_per_tok": 2}, "m: layer 0 has 8 experts"),
    "quantised": ({"quantization_config": {"quant_method": "fp8"}}, "m: quantization_config 'fp8'"),
    "latent attention": (
        {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
        "m: kv_lora_rank",
    ),
    "activation": ({"hidden_act": "gelu"}, "m: hidden_act must be silu to be executed, not 'gelu'"),
    "biased MLP": ({"mlp_bias": True}, "m: mlp_bias True cannot be executed"),
    "head groups": (
        {"num_key_value_heads": 5},
        "m: num_attention_heads 32 must be a multiple of num_key_value_heads 5",
    ),
    "odd heads": ({"head_dim": 33}, "m: head_dim 33 must be even"),
    "rope kind": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "m: rope type 'yarn' cannot be executed"),
    "rope without factor": (
        {"rope_parameters": {"rope_type": "linear"}},
        "m: rope_parameters: a linear scaling has no factor",
    ),
    "rope not a table": ({"rope_scaling": 8}, "m: rope_scaling must be an object, not 8"),
    "part of a head": ({"partial_rotary_factor": 0.5}, "m: partial_rotary_factor 0.5"),
    "theta": ({"rope_theta": -1}, "m: rope_theta must be a positive number, not -1"),
    "epsilon": ({"rms_norm_eps": "small"}, "m: rms_norm_eps must be a positive number, not 'small'"),
    "llama3 frequencies": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
            }
        },
        "m: rope high_freq_factor 1 must be above low_freq_factor 4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_executed_is_one_line(case):
    changes, expected = REFUSED[case]
    with pytest.raises(DeviceError) as error:
        read_decoder_config({**LLAMA, **changes}, "m")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '"llama"', "[" * 100_000, "\x80"])
def test_a_damaged_config_is_one_line(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DeviceError, match=r"config\.json") as error:
        read_model_files(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_without_weights_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(DeviceError, match=r"has neither model.safetensors nor model.safetensors.index.json"):
        read_model_files(tmp_path)
    with pytest.raises(DeviceError, match="expected a folder of safetensors or a GGUF file"):
        read_model_files(tmp_path / "config.json")
