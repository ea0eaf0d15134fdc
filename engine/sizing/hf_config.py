"""Reading a Hugging Face config.json: which layers a model has and how large they are.

What a field means, and the default that a model type gives it when config.json leaves it out, follows the
configuration classes of the transformers library.
"""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.hf_images import keeps_images_whole, takes_images
from kvtwin.engine.sizing.hf_layers import layer_shape, mlp_activation_values
from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, LayerKind
from kvtwin.engine.sizing.model_shape import ModelConfigError, ModelShape, WeightFormat
from kvtwin.engine.sizing.vision_tower import read_vision_tower

_TYPE_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "mixtral": {},
    "qwen2": {"use_sliding_window": False, "qkv_bias": True},
    "qwen2_moe": {"use_sliding_window": False, "qkv_bias": True},
    "qwen3": {"use_sliding_window": False, "head_dim": 128, "qk_norm": True},
    "qwen3_moe": {"use_sliding_window": False, "qk_norm": True},
    "qwen3_next": {
        "head_dim": 256,
        "qk_norm": True,
        "attn_output_gate": True,
        "full_attention_interval": 4,
    },
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "gemma2": {
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "norms": 4,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "norms": 4,
        "qk_norm": True,
        "tie_word_embeddings": True,
    },
    "gpt_oss": {"head_dim": 64, "sliding_window_pattern": 2, "attention_bias": True},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "kimi_k2": {},
    "llama4": {"head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    "phi3": {},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4, "norms": 1, "tie_word_embeddings": True},
    "nemotron_h": {"norms": 1, "use_conv_bias": True},
    "smollm3": {"use_sliding_window": False, "tie_word_embeddings": True},
}

_NOT_UNDERSTOOD = {
    "index_topk": "sparse attention with an indexer cache",
    "num_kv_shared_layers": "layers that share another layer's KV cache",
    "mamba_d_state": "Mamba layers",
    "ssm_cfg": "Mamba layers",
    "block_configs": "layers of different shapes",
    "cross_attention_layers": "cross-attention layers",
    "is_encoder_decoder": "an encoder",
    "linear_attn_config": "linear attention other than Qwen3-Next's",
}

_FULL: tuple[LayerKind, None] = ("full_attention", None)

_LAYER_KINDS: dict[str, LayerKind] = {
    "full_attention": "full_attention",
    "sliding_attention": "sliding_window",
    "chunked_attention": "chunked_local_attention",
    "linear_attention": "mamba",
}


def read_hf_config(config: dict[str, Any], name: str) -> ModelShape:
    """The shape of the language model in ``config``. ModelConfigError: what is missing or not understood."""
    text = config.get("text_config")
    merged = {**config, **text} if isinstance(text, dict) else dict(config)
    model_type = str(merged.get("model_type", "")).removesuffix("_text")
    notes = []
    for key, meaning in _NOT_UNDERSTOOD.items():
        if merged.get(key):
            raise ModelConfigError(f"{name}: config.json has {key}, {meaning}, which is not modelled")
    if merged.get("hybrid_override_pattern") and model_type != "nemotron_h":
        raise ModelConfigError(f"{name}: a hybrid_override_pattern is known of nemotron_h, not of {model_type!r}")
    if model_type not in _TYPE_DEFAULTS:
        notes.append(f"model_type {model_type!r} is not known: read as a Llama-like decoder with gated MLPs")
    defaults = {"tie_word_embeddings": False, "norms": 2, **_TYPE_DEFAULTS.get(model_type, {})}
    fields = Fields({**defaults, **merged}, name, model_type)

    dtype = _dtype(fields, config)
    layers = tuple(
        layer_shape(fields, index, kind, window, dtype) for index, (kind, window) in enumerate(_attention_kinds(fields))
    )
    quantization, weight_format = _weight_format(fields, dtype)
    vision = read_vision_tower(config, fields.integer("hidden_size"))
    if "vision_config" in config and vision is None:
        notes.append("the weights of the vision tower are not counted")
    return ModelShape(
        name=name,
        dtype=dtype,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        tied_embeddings=bool(fields.get("tie_word_embeddings")),
        max_position_tokens=_max_position_tokens(fields),
        layers=layers,
        weight_format=weight_format,
        quantization=quantization,
        num_mtp_layers=_num_mtp_layers(fields),
        mlp_activation_values=mlp_activation_values(fields),
        vision=vision,
        takes_images=takes_images(config),
        keeps_images_whole=keeps_images_whole(config),
        notes=tuple(notes),
    )


def _num_mtp_layers(fields: Fields) -> int:
    """Modules for multi-token prediction; of MiMo-V2's, vLLM loads only the first."""
    if fields.model_type.startswith("mimo_v2"):
        return 1
    return fields.count("mtp_num_hidden_layers", "num_nextn_predict_layers") or 1


def _dtype(fields: Fields, config: dict[str, Any]) -> str:
    name = fields.get("dtype") or fields.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"
    name = str(name).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ModelConfigError(f"{fields.name}: dtype {name!r} is not one of {', '.join(DTYPE_BYTES)}")
    return "bfloat16" if name == "float32" else name  # vLLM's "auto" runs float32 checkpoints in 16 bits


def _max_position_tokens(fields: Fields) -> int:
    """The longest context that vLLM derives: positions, enlarged by rope scaling unless it says otherwise."""
    length = fields.integer("max_position_embeddings")
    scaling = fields.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings", length)
        return int(original * scaling["factor"])
    if kind in ("linear", "dynamic") and not fields.model_type.startswith("gemma3"):
        return int(length * scaling["factor"])
    return length


def _attention_kinds(fields: Fields) -> list[tuple[LayerKind, int | None]]:
    """Kind and window of every layer, from the first rule that applies."""
    count = fields.integer("num_hidden_layers")
    if fields.get("hybrid_override_pattern"):
        return [_nemotron_kind(fields, letter) for letter in fields.per_layer("hybrid_override_pattern", count)]
    if fields.get("layer_types"):
        return [_named_kind(fields, str(kind)) for kind in fields.per_layer("layer_types", count)]
    if fields.get("full_attention_interval"):
        every = fields.integer("full_attention_interval")
        return [_FULL if (i + 1) % every == 0 else ("mamba", None) for i in range(count)]
    if fields.get("attention_chunk_size"):
        return _chunked_where_rope(fields, count)
    window = fields.get("sliding_window")
    if not window or fields.get("use_sliding_window") is False:
        return [_FULL] * count
    window = fields.integer("sliding_window")
    pattern = fields.get("_sliding_window_pattern") or fields.get("sliding_window_pattern")
    if pattern:
        return [_FULL if (i + 1) % int(pattern) == 0 else ("sliding_window", window) for i in range(count)]
    first = fields.count("max_window_layers") if fields.get("use_sliding_window") else 0
    return [_FULL if i < first else ("sliding_window", window) for i in range(count)]


def _nemotron_kind(fields: Fields, letter: str) -> tuple[LayerKind, int | None]:
    """Nemotron-H spells its layers as one letter each."""
    kinds: dict[str, LayerKind] = {"M": "mamba", "*": "full_attention", "-": "mlp"}
    if letter not in kinds:
        raise ModelConfigError(f"{fields.name}: hybrid_override_pattern has {letter!r}, not one of {', '.join(kinds)}")
    return kinds[letter], None


def _named_kind(fields: Fields, layer_type: str) -> tuple[LayerKind, int | None]:
    if layer_type not in _LAYER_KINDS:
        raise ModelConfigError(f"{fields.name}: layer type {layer_type!r} is not one of {', '.join(_LAYER_KINDS)}")
    kind = _LAYER_KINDS[layer_type]
    if kind == "sliding_window":
        return kind, fields.integer("sliding_window")
    if kind == "chunked_local_attention":
        return kind, fields.integer("attention_chunk_size")
    return kind, None


def _chunked_where_rope(fields: Fields, count: int) -> list[tuple[LayerKind, int | None]]:
    """Llama 4: layers with rotary embeddings attend within chunks, those without to everything."""
    chunk = fields.integer("attention_chunk_size")
    if fields.get("no_rope_layers"):
        rope = fields.per_layer("no_rope_layers", count)
    else:
        every = int(fields.get("no_rope_layer_interval") or 4)
        rope = [(i + 1) % every != 0 for i in range(count)]
    return [("chunked_local_attention", chunk) if has_rope else _FULL for has_rope in rope]


def _weight_format(fields: Fields, dtype: str) -> tuple[str | None, WeightFormat | None]:
    size = float(DTYPE_BYTES[dtype])
    quantization = fields.get("quantization_config")
    if not quantization:
        return None, WeightFormat(dtype, size, size, size)
    method = str(quantization.get("quant_method", "unknown"))
    if method == "mxfp4":  # OCP MX: 32 values of 4 bits share one scale of 8 bits; gpt-oss: experts only
        return method, WeightFormat(method, (32 * 4 + 8) / 8 / 32, size, size)
    if method == "fp8" and "weight_block_size" in quantization:  # one float32 scale per block
        rows, columns = quantization["weight_block_size"]
        linear = 1 + 4 / (rows * columns)
        return method, WeightFormat(method, linear, linear, size)
    if method == "fp8":
        return method, WeightFormat(method, 1.0, 1.0, size)
    return method, None
