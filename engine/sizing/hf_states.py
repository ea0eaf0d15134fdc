"""Layers that keep a state per sequence instead of keys and values: their states and their parameters."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.hf_layer_kinds import StateKind
from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, LayerSpec
from kvtwin.engine.sizing.model_shape import ModelConfigError


def state_mixer(fields: Fields, hidden: int, state: StateKind) -> dict[str, Any]:
    """The fields of a LayerShape for a layer with this kind of state."""
    makers = {
        "delta_net": _delta_net,
        "kimi_delta": _kimi_delta,
        "mamba1": _mamba1,
        "mamba2": _mamba2,
        "short_convolution": _short_convolution,
        "lightning": _lightning,
    }
    return makers[state](fields, hidden)


def without_attention(
    spec: LayerSpec, sharded_params: int, norm_params: int, replicated_params: int = 0
) -> dict[str, Any]:
    """The fields of a LayerShape for a layer without queries, keys and values."""
    return {
        "spec": spec,
        "query_heads": 0,
        "attention_width": 0,
        "prefill_attention_width": 0,
        "sharded_params": sharded_params,
        "kv_params": 0,
        "replicated_params": replicated_params,
        "norm_params": norm_params,
    }


def _delta_net(fields: Fields, hidden: int) -> dict[str, Any]:
    """Gated delta net (Qwen3-Next, Qwen3.5): a convolution state and a matrix per value head."""
    key_heads, value_heads = fields.integer("linear_num_key_heads"), fields.integer("linear_num_value_heads")
    key, value = fields.integer("linear_key_head_dim"), fields.integer("linear_value_head_dim")
    kernel = fields.integer("linear_conv_kernel_dim")
    conv_width = 2 * key_heads * key + value_heads * value
    value_width = value_heads * value
    spec = LayerSpec(
        "mamba",
        conv_values=(kernel - 1) * conv_width,
        conv_width=conv_width,
        ssm_values=value_heads * key * value,
        state_heads=key_heads,
        delta_key_size=key,
        prefill_kernel="FlashInfer",
        ssm_dtype=_stated_dtype(fields, "mamba_ssm_dtype") if fields.model_type.startswith("qwen3_5") else None,
    )
    return without_attention(
        spec,
        sharded_params=hidden * (conv_width + value_width + 2 * value_heads) + value_width * hidden,
        norm_params=conv_width * kernel + 2 * value_heads + value,
    )


def _kimi_delta(fields: Fields, hidden: int) -> dict[str, Any]:
    """Kimi delta attention: three convolutions in one state and, in float32, a matrix per head.

    Decay and output gate are made in two steps, through ``head_dim`` values; in Kimi-K3 the gate, and in Ling 3 both,
    in one.
    """
    config = fields.mapping("linear_attn_config") if fields.has("linear_attn_config") else fields
    heads, head = config.integer("num_heads", "num_attention_heads"), config.integer("head_dim")
    kernel = config.integer("short_conv_kernel_size", default=4)
    width = heads * head
    is_ling = fields.model_type == "bailing_hybrid"
    has_full_gate = is_ling or config.flag("use_full_rank_gate")
    in_one_step, in_two_steps = has_full_gate + is_ling, 2 - has_full_gate - is_ling
    has_checkpoints = config.flag("use_full_rank_gate") and config.has("gate_lower_bound")
    spec = LayerSpec(
        "mamba",
        conv_values=(kernel - 1) * 3 * width,
        conv_width=3 * width,
        ssm_values=heads * head * head,
        state_heads=heads,
        ssm_dtype="float32",
        delta_key_size=head,
        prefill_kernel="FlashKDA" if has_checkpoints else None,
    )
    return without_attention(
        spec,
        sharded_params=hidden * ((4 + in_one_step) * width + heads) + in_two_steps * head * width,
        replicated_params=in_two_steps * hidden * head,
        norm_params=3 * width * kernel + heads + width + head,
    )


def _lightning(fields: Fields, hidden: int) -> dict[str, Any]:
    """Linear attention of Ling and Ring 2.5: a matrix per head, in the model's dtype, and no convolution."""
    heads = fields.integer("num_attention_heads")
    head = fields.integer("head_dim", default=hidden // heads)
    width = heads * head
    bias = fields.flag("use_bias") or fields.flag("use_qkv_bias")
    return without_attention(
        LayerSpec("mamba", ssm_values=heads * head * head, state_heads=heads),
        sharded_params=hidden * 5 * width + bias * 3 * width + fields.flag("use_bias") * hidden,
        norm_params=width + 2 * head * fields.flag("use_qk_norm"),
    )


def _mamba1(fields: Fields, hidden: int) -> dict[str, Any]:
    """Mamba (Gu and Dao, 2023): a convolution state, and ``state`` values per channel. Jamba's has norms besides."""
    is_jamba = fields.has("mamba_d_state")
    width = fields.integer("mamba_expand", "expand") * hidden if is_jamba else _inner_width(fields, hidden)
    state, kernel = fields.integer("mamba_d_state", "state_size"), fields.integer("mamba_d_conv", "conv_kernel")
    rank = fields.first("mamba_dt_rank", "time_step_rank")
    rank = -(-hidden // 16) if rank in (None, "auto") else fields.integer("mamba_dt_rank", "time_step_rank")
    spec = LayerSpec(
        "mamba", conv_values=(kernel - 1) * width, conv_width=width, ssm_values=width * state, state_heads=width
    )
    conv_bias = width if fields.flag("mamba_conv_bias") or fields.flag("use_conv_bias") else 0
    norms = rank + 2 * state if is_jamba else 0
    return without_attention(
        spec,
        sharded_params=2 * hidden * width + width * hidden + width * (rank + 2 * state) + rank * width + width,
        norm_params=width * kernel + conv_bias + width * state + width + norms,
    )


def _inner_width(fields: Fields, hidden: int) -> int:
    return fields.integer("intermediate_size", default=fields.integer("expand", default=2) * hidden)


def _mamba2(fields: Fields, hidden: int) -> dict[str, Any]:
    """Mamba 2 (Dao and Gu, 2024): a convolution state, and a matrix per head."""
    heads = fields.integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    head = fields.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
    groups = fields.integer("n_groups", "mamba_n_groups", "mamba_ngroups")
    state = fields.integer("ssm_state_size", "mamba_d_state", "state_size")
    kernel = fields.integer("conv_kernel", "mamba_d_conv")
    width = heads * head
    conv_width = width + 2 * groups * state
    spec = LayerSpec(
        "mamba",
        conv_values=(kernel - 1) * conv_width,
        conv_width=conv_width,
        ssm_values=width * state,
        state_heads=heads,
        state_groups=groups,
        group_conv_width=2 * state,
        ssm_dtype=_mamba2_ssm_dtype(fields),
        prefill_checkpoint_alignment=1,
    )
    has_bias = fields.flag("use_conv_bias") or fields.flag("mamba_conv_bias")
    has_norm = fields.get("mamba_rms_norm") is not False
    return without_attention(
        spec,
        sharded_params=hidden * (width + conv_width + heads) + width * hidden,
        norm_params=conv_width * (kernel + has_bias) + 3 * heads + has_norm * width,
    )


def _mamba2_ssm_dtype(fields: Fields) -> str | None:
    """Nemotron-H keeps its matrices in float32 unless config.json says otherwise; others in the model's dtype."""
    if fields.model_type != "nemotron_h":
        return None
    return _stated_dtype(fields, "mamba_ssm_cache_dtype", "mamba_ssm_dtype") or "float32"


def _stated_dtype(fields: Fields, *keys: str) -> str | None:
    """The dtype of a state; None where no field states one. ModelConfigError: one that is not known."""
    name = fields.first(*keys)
    if name is not None and name not in tuple(DTYPE_BYTES):
        raise ModelConfigError(f"{fields.name}: {keys[0]} {name!r} is not one of {', '.join(DTYPE_BYTES)}")
    return None if name is None else str(name)


def _short_convolution(fields: Fields, hidden: int) -> dict[str, Any]:
    """LFM2: a gated convolution over the last few tokens."""
    kernel = fields.integer("conv_L_cache")
    width = fields.integer("conv_dim", default=hidden)
    has_bias = fields.flag("conv_bias")
    spec = LayerSpec("mamba", conv_values=(kernel - 1) * width, conv_width=width, state_heads=width)
    return without_attention(
        spec,
        sharded_params=3 * hidden * width + width * hidden + has_bias * 4 * width,
        norm_params=width * (kernel + has_bias),
    )
