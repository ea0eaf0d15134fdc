"""Reading a Hugging Face config.json: which layers a model has and how large they are.

What a field means, and the default that a model type gives it when config.json leaves it out, follows the
configuration classes of the transformers library; which layers a model makes of them follows vLLM's model classes.
Whatever could change the layout of the cache is read, or refused by its name.
"""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.hf_compressed import head_hyper_connections
from kvtwin.engine.sizing.hf_families import UNLIMITED_TOKENS, family_defaults, family_name, is_known_family
from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.hf_images import keeps_images_whole, takes_images
from kvtwin.engine.sizing.hf_layer_kinds import PlannedLayer, planned_layers
from kvtwin.engine.sizing.hf_layers import layer_shape, weighs_residuals
from kvtwin.engine.sizing.hf_mlp import widest_activation
from kvtwin.engine.sizing.hf_quantization import Quantization, read_quantization
from kvtwin.engine.sizing.hf_refused import refuse_by_name, refuse_unread
from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES
from kvtwin.engine.sizing.model_shape import LayerShape, ModelConfigError, ModelShape, WeightFormat
from kvtwin.engine.sizing.vision_tower import read_vision_tower

_LANGUAGE_PARTS = ("thinker_config", "text_config", "llm_config", "language_config", "language_model_config")
"""Where multimodal models keep the configuration of their language model."""

_OF_THE_WHOLE = ("dtype", "torch_dtype", "tie_word_embeddings", "rope_scaling")
"""Fields that may stand beside the language part instead of inside it."""

_UNLIMITED_DEFAULT_TOKENS = 2048
"""vLLM's longest request of a model without a longest context, where nothing else is said."""

_OTHER_TOWERS = ("vision_config", "audio_config", "vit_config", "vision_tower_config", "audio_tower_config")


def read_hf_config(config: dict[str, Any], name: str) -> ModelShape:
    """The shape of the language model in ``config``. ModelConfigError: what is missing or not understood."""
    language = _language_part(config, name)
    refuse_by_name(config, language, name)
    model_type = language.get("model_type", config.get("model_type", ""))
    if not isinstance(model_type, str):
        raise ModelConfigError(f"{name}: model_type must be a name, not {model_type!r}")
    family = family_name(model_type)
    fields = Fields(_with_defaults(family, language), name, family)
    notes = []
    if not is_known_family(family):
        notes.append(f"model_type {model_type!r} is not known: read as a decoder with gated MLPs, like Llama")

    dtype = _dtype(fields)
    quantization = read_quantization(config, name)
    planned = planned_layers(fields)
    layers = tuple(layer_shape(fields, index, layer, quantization, dtype) for index, layer in enumerate(planned))
    hidden = fields.integer("hidden_size")
    longest, default_length = _max_position_tokens(fields)
    vision = read_vision_tower(config, hidden)
    if any(config.get(tower) for tower in _OTHER_TOWERS) and vision is None:
        notes.append("the weights of the vision tower are not counted")
    shape = ModelShape(
        name=name,
        dtype=dtype,
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        max_position_tokens=longest,
        default_max_model_len=default_length,
        layers=layers,
        weight_format=_weight_format(quantization, dtype),
        quantization=quantization.method if quantization else None,
        kv_cache_dtype=quantization.kv_cache_dtype if quantization else None,
        mtp_layer=_mtp_layer(fields, quantization, dtype),
        sm100_kv_cache_dtype=fields.get(".sm100_kv_cache_dtype"),
        num_mtp_layers=_num_mtp_layers(fields),
        other_params=_other_params(fields, hidden),
        mlp_activation_values=widest_activation(fields, planned, hidden),
        kept_hidden_states=_kept_hidden_states(fields),
        vision=vision,
        takes_images=takes_images(config),
        keeps_images_whole=keeps_images_whole(config),
        notes=(*notes, *(quantization.notes if quantization else ())),
    )
    refuse_unread(fields)
    return shape


def _language_part(config: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of the language model, which multimodal models nest."""
    part = config
    for key in _LANGUAGE_PARTS:
        inner = part.get(key)
        if inner is None:
            continue
        if not isinstance(inner, dict):
            raise ModelConfigError(f"{name}: {key} must be an object, not {inner!r}"[:200])
        outer = {key: part[key] for key in _OF_THE_WHOLE if part.get(key) is not None}
        model_type = inner.get("model_type") or part.get("model_type")
        part = {**outer, **inner, "model_type": model_type}
    return part


def _with_defaults(family: str, language: dict[str, Any]) -> dict[str, Any]:
    """The fields, with the family's own where the file leaves them out; an explicit null stays."""
    return {**family_defaults(family), **{key: value for key, value in language.items() if not key.startswith(".")}}


def _num_mtp_layers(fields: Fields) -> int:
    """Modules for multi-token prediction; of MiMo-V2's, vLLM loads only the first."""
    if fields.model_type.startswith("mimo_v2"):
        return 1
    return fields.count("mtp_num_hidden_layers", "num_nextn_predict_layers") or 1


def _mtp_layer(fields: Fields, quantization: Quantization | None, dtype: str) -> LayerShape | None:
    """The layer of an MTP module where config.json states its kind: DeepSeek-V4's has a window alone."""
    count = fields.num_layers()
    if fields.model_type != "deepseek_v4" or len(fields.get("compress_ratios")) <= count:
        return None
    return layer_shape(fields, count, PlannedLayer("full_attention"), quantization, dtype)


def _dtype(fields: Fields) -> str:
    name = str(fields.first("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ModelConfigError(f"{fields.name}: dtype {name!r} is not one of {', '.join(DTYPE_BYTES)}")
    return "bfloat16" if name == "float32" else name  # vLLM's "auto" runs float32 checkpoints in 16 bits


def _max_position_tokens(fields: Fields) -> tuple[int, int | None]:
    """The longest context that vLLM derives, and the one that it takes where nothing is said, if that is another.

    Files state the length with YaRN's factor already in it; LongRoPE models are served at their original length unless
    told otherwise.
    """
    length = fields.integer("max_position_embeddings", "max_seq_len", "seq_length", "model_max_length")
    if length == UNLIMITED_TOKENS:
        return length, _UNLIMITED_DEFAULT_TOKENS
    scaling = fields.mapping("rope_parameters" if fields.get("rope_parameters") else "rope_scaling")
    kind = scaling.first("rope_type", "type") or "default"
    if kind in ("longrope", "su"):
        original = fields.integer("original_max_position_embeddings", default=length)
        return length, original if original != length else None
    if kind in ("linear", "dynamic", "yarn", "llama3") and scaling.get("factor") is None:
        raise ModelConfigError(f"{scaling.name}: a {kind} scaling has no factor")
    factor = scaling.number("factor", 1.0)
    if kind in ("linear", "dynamic") and not fields.model_type.startswith("gemma3"):
        return int(length * factor), None
    return length, None


def _weight_format(quantization: Quantization | None, dtype: str) -> WeightFormat:
    """The model's format; quantised layers have one of their own each."""
    size = float(DTYPE_BYTES[dtype])
    if not quantization:
        return WeightFormat(dtype, size, size, size)
    inside = "model.layers.0.mlp"
    return WeightFormat(
        quantization.method,
        quantization.mean_bytes([f"{inside}.experts.0.up_proj"], otherwise=size),
        quantization.mean_bytes([f"{inside}.up_proj"], otherwise=size),
        size,
    )


def _kept_hidden_states(fields: Fields) -> int:
    if not weighs_residuals(fields):
        return 0
    return -(-fields.num_layers() // fields.integer("attn_res_block_size"))


def _other_params(fields: Fields, hidden: int) -> int:
    """Parameters outside layers, embedding and head: what Gemma's small models look up for each layer, or what weighs
    the residuals of Kimi-K3's layers at the end."""
    if fields.model_type == "deepseek_v4":
        return head_hyper_connections(fields, hidden)
    if weighs_residuals(fields):
        return 2 * hidden
    width = fields.count("hidden_size_per_layer_input")
    if not width or fields.model_type not in ("gemma3n", "gemma4"):
        return 0
    of_all_layers = fields.num_layers() * width
    streams = 2 * max(0, fields.count("altup_num_inputs") - 1) * hidden * hidden  # into AltUp's streams and back
    return of_all_layers * (fields.integer("vocab_size_per_layer_input") + hidden) + width + streams
