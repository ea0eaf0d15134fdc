"""What each layer of a model is: attention, of which window, a state, or only an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.layer_spec import LayerKind
from kvtwin.engine.sizing.model_shape import ModelConfigError

StateKind = Literal["delta_net", "kimi_delta", "lightning", "mamba1", "mamba2", "short_convolution"]


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """One decoder layer before its sizes are known.

    ``state`` is the kind of state of a "mamba" layer; ``has_attention_too`` says that attention stands beside it. A
    layer that ``shares_cache`` reads the cache of an earlier one. ``mlp`` is "auto" where fields of experts decide.
    """

    kind: LayerKind
    window_tokens: int | None = None
    state: StateKind | None = None
    has_attention_too: bool = False
    shares_cache: bool = False
    mlp: Literal["auto", "dense", "experts", "none"] = "auto"


_FULL = PlannedLayer("full_attention")

_ONLY_STATES: dict[str, StateKind] = {"mamba": "mamba1", "falcon_mamba": "mamba1", "mamba2": "mamba2"}
"""Families without any attention."""

_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_EXAONE_LETTERS = "LG"

_WORDS: dict[str, str] = {
    "attention": "full",
    "full_attention": "full",
    "deepseek_sparse_attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "window",
    "sliding_window": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "mamba": "state",
    "mamba2": "state",
    "conv": "state",
    "hybrid": "state and attention",
    "moe": "experts",
    "mlp": "dense",
}


def planned_layers(fields: Fields) -> list[PlannedLayer]:
    """Every decoder layer, from the first rule that applies. ModelConfigError: a kind that is not known."""
    count = fields.num_layers()
    layers = _layers(fields, count)
    if fields.flag(".mixer_only"):
        layers = [layer if layer.kind == "mlp" else replace(layer, mlp="none") for layer in layers]
    shared = fields.count("num_kv_shared_layers")
    if shared >= count:
        raise ModelConfigError(
            f"{fields.name}: num_kv_shared_layers must be less than the {count} layers, not {shared}"
        )
    return layers[: count - shared] + [replace(layer, shares_cache=True) for layer in layers[count - shared :]]


def _layers(fields: Fields, count: int) -> list[PlannedLayer]:
    if fields.get("block_configs") is not None:
        return _by_block_configs(fields, count)
    if fields.model_type == "deepseek_v4":
        return [_FULL] * count
    if fields.model_type in _ONLY_STATES:
        return [PlannedLayer("mamba", state=_ONLY_STATES[fields.model_type], mlp="none")] * count
    if fields.model_type == "falcon_h1":
        return [PlannedLayer("mamba", state="mamba2", has_attention_too=True)] * count
    for key in ("hybrid_override_pattern", "layers_block_type", "layer_types"):
        if fields.get(key):
            return [_named(fields, key, word) for word in fields.per_layer(key, count)]
    if fields.get("linear_attn_config"):
        return _by_numbers(fields, count)
    if fields.model_type == "bailing_hybrid":
        return _in_groups(fields, count)
    if fields.get("hybrid_layer_pattern"):
        window = _window(fields)
        return [window if is_window else _FULL for is_window in fields.per_layer("hybrid_layer_pattern", count)]
    if fields.get("attn_layer_period"):
        period, offset = fields.integer("attn_layer_period"), fields.count("attn_layer_offset")
        state = PlannedLayer("mamba", state=_state_kind(fields))
        return [_FULL if i % period == offset else state for i in range(count)]
    if fields.get("full_attention_interval"):
        every = fields.integer("full_attention_interval")
        state = PlannedLayer("mamba", state=_state_kind(fields))
        return [_FULL if (i + 1) % every == 0 else state for i in range(count)]
    if fields.get("full_attn_idxs") is not None:
        full = fields.layer_numbers("full_attn_idxs")
        return [_FULL if i in full else PlannedLayer("mamba", state=_state_kind(fields)) for i in range(count)]
    if fields.get("attention_chunk_size"):
        return _chunked_where_rope(fields, count)
    return _by_window(fields, count)


def _named(fields: Fields, key: str, word: object) -> PlannedLayer:
    """A layer from its letter or word."""
    if key == "hybrid_override_pattern":
        if fields.model_type != "nemotron_h":
            raise ModelConfigError(f"{fields.name}: {key} is known of nemotron_h, not of {fields.model_type!r}")
        if word not in _NEMOTRON_LETTERS:
            raise ModelConfigError(f"{fields.name}: {key} has {word!r}, not one of {', '.join(_NEMOTRON_LETTERS)}")
        word = _NEMOTRON_LETTERS[str(word)]
    kind = _WORDS.get(word) if isinstance(word, str) else None
    if kind is None or (word == "indexed_attention" and not fields.has("index_topk")):
        raise ModelConfigError(f"{fields.name}: {key} has {word!r}, not one of {', '.join(_WORDS)}")
    if kind == "window":
        return _window(fields)
    if kind == "chunk":
        return PlannedLayer("chunked_local_attention", fields.integer("attention_chunk_size"))
    if kind in ("experts", "dense"):
        return PlannedLayer("mlp", mlp="experts" if kind == "experts" else "dense")
    if kind in ("state", "state and attention"):
        has_attention_too = kind == "state and attention"
        mlp: Literal["auto", "none"] = "none" if fields.model_type == "zamba2" else "auto"
        return PlannedLayer("mamba", state=_state_kind(fields), has_attention_too=has_attention_too, mlp=mlp)
    return _FULL


def _state_kind(fields: Fields) -> StateKind:
    """Which kind of state a model has, from the fields that describe it."""
    if fields.has("linear_attn_config"):
        return "kimi_delta"
    if fields.has("conv_L_cache"):
        return "short_convolution"
    if fields.has("mamba_num_heads", "mamba_n_heads", "n_mamba_heads"):
        return "mamba2"
    if fields.has("mamba_d_state"):
        return "mamba1"
    if fields.has("linear_num_value_heads"):
        return "delta_net"
    raise ModelConfigError(
        f"{fields.name}: the fields of model_type {fields.model_type!r} do not say how large a state is"
    )


def _by_block_configs(fields: Fields, count: int) -> list[PlannedLayer]:
    """Nemotron-NAS: every layer says whether it has attention, and of how many heads."""
    layers = []
    for index in range(count):
        attention = block(fields, index, count).mapping("attention")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            layers.append(PlannedLayer("mlp"))
        else:
            layers.append(_FULL)
    return layers


def block(fields: Fields, index: int, count: int) -> Fields:
    """Layer ``index`` of ``block_configs``."""
    blocks: Sequence[object] = fields.per_layer("block_configs", count)
    entry = blocks[index]
    if not isinstance(entry, dict) or not isinstance(entry.get("attention"), dict):
        raise ModelConfigError(f"{fields.name}: block_configs: expected objects with attention and ffn, not {entry!r}")
    return Fields(entry, f"{fields.name}: block_configs", fields.model_type)


def _by_numbers(fields: Fields, count: int) -> list[PlannedLayer]:
    """Kimi-Linear numbers its state layers, from 1."""
    states = fields.mapping("linear_attn_config").layer_numbers("kda_layers")
    return [PlannedLayer("mamba", state="kimi_delta") if i + 1 in states else _FULL for i in range(count)]


def _in_groups(fields: Fields, count: int) -> list[PlannedLayer]:
    """Ling and Ring hybrids: states but for the last layer of a group; Ling 3 has none behind the last whole group."""
    every = fields.integer("layer_group_size", default=1)
    is_delta = fields.has("short_conv_kernel_size")
    if is_delta and not fields.flag("no_kda_lora"):
        raise ModelConfigError(f"{fields.name}: no_kda_lora must be true: vLLM 0.33 serves no other such layers")
    state = PlannedLayer("mamba", state="kimi_delta" if is_delta else "lightning")
    end = count // every * every if is_delta else count
    return [_FULL if (i + 1) % every == 0 or i >= end else state for i in range(count)]


def _chunked_where_rope(fields: Fields, count: int) -> list[PlannedLayer]:
    """Llama 4: layers with rotary embeddings attend within chunks, those without to everything."""
    chunked = PlannedLayer("chunked_local_attention", fields.integer("attention_chunk_size"))
    if fields.get("no_rope_layers"):
        rope = [bool(entry) for entry in fields.per_layer("no_rope_layers", count)]
    else:
        every = fields.integer("no_rope_layer_interval", default=4)
        rope = [(i + 1) % every != 0 for i in range(count)]
    return [chunked if has_rope else _FULL for has_rope in rope]


def _window(fields: Fields) -> PlannedLayer:
    size = fields.integer("sliding_window", "sliding_window_size") + fields.count(".window_extra_tokens")
    return PlannedLayer("sliding_window", size)


def _by_window(fields: Fields, count: int) -> list[PlannedLayer]:
    if not fields.first("sliding_window", "sliding_window_size") or fields.get("use_sliding_window") is False:
        return [_FULL] * count
    window = _window(fields)
    pattern = fields.first("_sliding_window_pattern", "sliding_window_pattern")
    if isinstance(pattern, str):
        if not pattern or set(pattern) - set(_EXAONE_LETTERS):
            raise ModelConfigError(f"{fields.name}: sliding_window_pattern has {pattern!r}, expected letters L and G")
        letters = (pattern * count)[: count - 1] + "G"
        return [_FULL if letter == "G" else window for letter in letters]
    if pattern:
        every = fields.integer("_sliding_window_pattern", "sliding_window_pattern")
        return [_FULL if (i + 1) % every == 0 else window for i in range(count)]
    first = fields.count("max_window_layers") if fields.flag("use_sliding_window") else 0
    if 0 < first < count and fields.model_type.startswith(("qwen2", "qwen3")):
        raise ModelConfigError(
            f"{fields.name}: max_window_layers {first}: vLLM serves windows in all {count} layers or in none"
        )
    return [_FULL if i < first else window for i in range(count)]
