"""Model families: what their config.json may leave out, and what no config.json says.

Defaults are those of the transformers library's configuration classes. Names that begin with a dot are not fields but
properties of the architecture: ``.norms`` is the number of RMSNorm weights of the model's width in a layer;
``.qk_norm`` is "head" where queries and keys have a norm of one head, "heads" where it spans all of them; ``.qkv_bias``
are biases behind queries, keys and values but not behind the output; ``.gated`` MLPs have a third matrix.
"""

from __future__ import annotations

from typing import Any

UNLIMITED_TOKENS = 1 << 31
"""The longest context of a model that has no positions."""

_PLAIN: dict[str, Any] = {"tie_word_embeddings": False, ".norms": 2, ".gated": True}

_QWEN3: dict[str, Any] = {"use_sliding_window": False, "max_window_layers": 28, ".qk_norm": "head"}
_DELTA_NET: dict[str, Any] = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "full_attention_interval": 4,
    "attn_output_gate": True,
    ".qk_norm": "head",
}
_GEMMA: dict[str, Any] = {"head_dim": 256, "tie_word_embeddings": True, ".norms": 4}

_ONLY_STATES: dict[str, Any] = {"max_position_embeddings": UNLIMITED_TOKENS, "use_conv_bias": True, ".norms": 1}

_FAMILIES: dict[str, dict[str, Any]] = {
    "afmoe": {".norms": 4, ".qk_norm": "head", ".router_bias": True, "gating": "per-element"},
    "apertus": {".gated": False, ".qk_norm": "head"},
    "arcee": {".gated": False},
    "axk1": {".norms": 3, ".router_bias": True},
    "bailing_hybrid": {".router_bias": True},
    "bailing_moe": {},
    "cohere": {".norms": 1, "tie_word_embeddings": True},
    "cohere2": {
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        ".norms": 1,
        "tie_word_embeddings": True,
        ".window_extra_tokens": 1,
    },
    "deci": {},
    "nemotron-nas": {},
    "deepseek_v2": {},
    "deepseek_v3": {".router_bias": True},
    "deepseek_v32": {".router_bias": True},
    "deepseek_v4": {".router_bias": True},
    "ernie4_5": {"tie_word_embeddings": True},
    "ernie4_5_moe": {".router_bias": True},
    "exaone4": {"sliding_window": 4096, "sliding_window_pattern": 4, ".qk_norm": "head"},
    "exaone_moe": {".qk_norm": "head", ".router_bias": True},
    "falcon_h1": {},
    "gemma": {**_GEMMA, ".norms": 2},
    "gemma2": {**_GEMMA, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3": {
        **_GEMMA,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        ".qk_norm": "head",
    },
    "gemma3n": {
        **_GEMMA,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 262400,
        "max_position_embeddings": 32768,
        "sliding_window": 512,
        "sliding_window_pattern": 5,
        "num_kv_shared_layers": 15,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_num_inputs": 4,
        "laurel_rank": 64,
        ".qk_norm": "head",
    },
    "gemma4": {
        **_GEMMA,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262144,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "global_head_dim": 512,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        ".qk_norm": "head",
    },
    "glm4": {".norms": 4, "attention_bias": True, "attention_out_bias": False},
    "glm4v": {".norms": 4, "attention_out_bias": False},
    "glm_ocr": {".norms": 4, "attention_out_bias": False},
    "glm4_moe": {".router_bias": True, "attention_out_bias": False},
    "glm4v_moe": {".router_bias": True, "attention_out_bias": False},
    "glm4_moe_lite": {".router_bias": True},
    "glm_moe_dsa": {".router_bias": True, ".sm100_kv_cache_dtype": "fp8_e4m3"},
    "gpt_oss": {
        "head_dim": 64,
        "sliding_window_pattern": 2,
        "attention_bias": True,
        ".expert_bias": True,
        ".sinks": True,
    },
    "granite": {},
    "granite_swa": {"tie_word_embeddings": True, ".sinks": True},
    "granitemoe": {"tie_word_embeddings": True},
    "granitemoeshared": {"tie_word_embeddings": True},
    "granitemoe_swa": {"tie_word_embeddings": True, ".sinks": True},
    "granitemoehybrid": {"tie_word_embeddings": True, "mamba_conv_bias": True},
    "hy_v3": {".router_bias": True},
    "hyperclovax": {},
    "hunyuan_v1_dense": {".qk_norm": "head", "tie_word_embeddings": True},
    "internlm2": {},
    "internlm3": {},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
    },
    "kimi_k2": {".router_bias": True},
    "kimi_linear": {".router_bias": True},
    "laguna": {".qk_norm": "head", ".router_bias": True},
    "lfm2": {"conv_L_cache": 3, "tie_word_embeddings": True, ".qk_norm": "head"},
    "lfm2_moe": {".router_bias": True, "conv_L_cache": 3, "tie_word_embeddings": True, ".qk_norm": "head"},
    "llama": {},
    "llama4": {"head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    "mamba": {**_ONLY_STATES, "tie_word_embeddings": True},
    "falcon_mamba": _ONLY_STATES,
    "mamba2": _ONLY_STATES,
    "mimo": {".qkv_bias": True},
    "mimo_v2": {".router_bias": True},
    "mimo_v2_flash": {".router_bias": True},
    "minicpm3": {},
    "minimax_m2": {".qk_norm": "heads", ".router_bias": True},
    "minimax_m3": {".qk_norm": "head", ".router_bias": True},
    "ministral3": {},
    "mistral": {"sliding_window": 4096},
    "mixtral": {},
    "nemotron": {".gated": False},
    "nemotron_h": {".norms": 1, ".gated": False, ".mixer_only": True, "use_conv_bias": True, ".router_bias": True},
    "olmo2": {".qk_norm": "heads"},
    "olmo3": {"sliding_window": 4096, "sliding_window_pattern": 4, ".qk_norm": "heads"},
    "olmo_hybrid": {".qk_norm": "heads"},
    "olmoe": {".qk_norm": "heads"},
    "phi3": {},
    "qwen2": {"use_sliding_window": False, "max_window_layers": 28, ".qkv_bias": True},
    "qwen2_moe": {"use_sliding_window": False, "max_window_layers": 28, ".qkv_bias": True},
    "qwen2_vl": {"use_sliding_window": False, "max_window_layers": 28, ".qkv_bias": True},
    "qwen2_5_vl": {"use_sliding_window": False, "max_window_layers": 28, ".qkv_bias": True},
    "qwen2_5_omni": {"use_sliding_window": False, "max_window_layers": 28, ".qkv_bias": True},
    "qwen3": {**_QWEN3, "head_dim": 128},
    "qwen3_moe": _QWEN3,
    "qwen3_vl": {**_QWEN3, "head_dim": 128},
    "qwen3_vl_moe": {**_QWEN3, "head_dim": 128},
    "qwen3_omni_moe": {**_QWEN3, "head_dim": 128},
    "qwen3_next": _DELTA_NET,
    "qwen3_5": _DELTA_NET,
    "qwen3_5_moe": _DELTA_NET,
    "seed_oss": {"attention_bias": True, "attention_out_bias": False},
    "smollm3": {"use_sliding_window": False, "tie_word_embeddings": True},
    "solar": {},
    "step3p5": {".qk_norm": "head", ".router_bias": True},
}

_SUFFIXES = ("_text", "_thinker")


def family_name(model_type: str) -> str:
    """The family of a model_type: that of the language part of a multimodal model is the same."""
    for suffix in _SUFFIXES:
        model_type = model_type.removesuffix(suffix)
    return model_type


def family_defaults(family: str) -> dict[str, Any]:
    """The fields that a config.json of this family may leave out, and the family's properties."""
    return {**_PLAIN, **_FAMILIES.get(family, {})}


def is_known_family(family: str) -> bool:
    """Whether the family's layers are known to be read as vLLM makes them."""
    return family in _FAMILIES
