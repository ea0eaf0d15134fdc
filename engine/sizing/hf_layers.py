"""Counting the parameters of one decoder layer from the fields of a config.json."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.layer_spec import LayerKind, LayerSpec
from kvtwin.engine.sizing.model_shape import LayerShape, ModelConfigError


def layer_shape(fields: Fields, index: int, kind: LayerKind, window: int | None, dtype: str) -> LayerShape:
    """Layer number ``index``: its attention or state, and its dense or expert MLP."""
    hidden = fields.integer("hidden_size")
    mixer = _mixer(fields, hidden, kind, window)
    mixer["norm_params"] += int(fields["norms"]) * hidden
    if fields.model_type == "nemotron_h":  # a layer is a mixer or an MLP without a gate
        mixer["sharded_params"] += (kind == "mlp") * 2 * hidden * _dense_width(fields)
        return LayerShape(**mixer)
    if not _is_expert_layer(fields, index):
        width = _dense_width(fields)
        mixer["sharded_params"] += 3 * hidden * width
        return LayerShape(**mixer)
    experts = _num_experts(fields)
    width = _expert_width(fields)
    biased = fields.model_type == "gpt_oss"
    router = hidden * experts + experts * (biased or fields.model_type in ("deepseek_v3", "kimi_k2"))
    shared = _shared_width(fields)
    shared_gate = hidden * (fields.get("shared_expert_intermediate_size") is not None)
    mixer["sharded_params"] += 3 * hidden * shared
    mixer["norm_params"] += router + shared_gate  # kept in the model's dtype when experts are quantised
    return LayerShape(
        **mixer,
        num_experts=experts,
        active_experts=fields.count("num_experts_per_tok", "experts_per_token") or 1,
        expert_params=3 * hidden * width + biased * (2 * width + hidden),
    )


def mlp_activation_values(fields: Fields) -> int:
    """Values per token of the widest MLP: gate and up together, and their product."""
    dense = (2 if fields.model_type == "nemotron_h" else 3) * _dense_width(fields)
    if not _num_experts(fields):
        return dense
    chosen = fields.count("num_experts_per_tok", "experts_per_token") or 1
    width = _expert_width(fields)
    return max(
        dense if fields.get("first_k_dense_replace") else 0,
        chosen * (max(2 * width, fields.integer("hidden_size")) + width),
    )


def _mixer(fields: Fields, hidden: int, kind: LayerKind, window: int | None) -> dict[str, Any]:
    if kind == "mlp":
        return _without_attention(LayerSpec("mlp"), sharded_params=0, norm_params=0)
    if kind == "mamba":
        return _mamba2(fields, hidden) if fields.get("mamba_num_heads") else _delta_net(fields, hidden)
    if fields.get("kv_lora_rank"):
        return _latent_attention(fields, hidden)
    return _attention(fields, hidden, kind, window)


def _without_attention(spec: LayerSpec, sharded_params: int, norm_params: int) -> dict[str, Any]:
    return {
        "spec": spec,
        "query_heads": 0,
        "attention_width": 0,
        "prefill_attention_width": 0,
        "sharded_params": sharded_params,
        "kv_params": 0,
        "replicated_params": 0,
        "norm_params": norm_params,
    }


def _attention(fields: Fields, hidden: int, kind: LayerKind, window: int | None) -> dict[str, Any]:
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", heads)
    head = fields.integer("head_dim", hidden // heads)
    if not head:
        raise ModelConfigError(f"{fields.name}: hidden_size {hidden} is too small for num_attention_heads {heads}")
    head_v = fields.integer("v_head_dim", head)
    query, key_value = heads * head, kv_heads * (head + head_v)
    gate = 2 if fields.get("attn_output_gate") else 1
    sharded = hidden * query * gate + heads * head_v * hidden
    kv_params = hidden * key_value
    norm_params = 0
    if fields.get("attention_bias"):
        sharded += query * gate + hidden
        kv_params += key_value
    elif fields.get("qkv_bias"):
        sharded += query
        kv_params += key_value
    if fields.get("qk_norm"):
        norm_params += 2 * head
    if fields.model_type == "gpt_oss":
        norm_params += heads  # one attention sink per head
    return {
        "spec": LayerSpec(kind, kv_heads, head, head_v, window),
        "query_heads": heads,
        "attention_width": head + head_v,
        "prefill_attention_width": head + head_v,
        "sharded_params": sharded,
        "kv_params": kv_params,
        "replicated_params": 0,
        "norm_params": norm_params,
    }


def _latent_attention(fields: Fields, hidden: int) -> dict[str, Any]:
    """MLA (DeepSeek-V2 report, section 2.1): the cache holds one latent and one rope key per token."""
    heads = fields.integer("num_attention_heads")
    latent, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_latent = fields.count("q_lora_rank")
    sharded = (query_latent or hidden) * heads * (nope + rope) + latent * heads * (nope + value)
    return {
        "spec": LayerSpec("full_attention", 1, latent + rope, is_latent=True),
        "query_heads": heads,
        "attention_width": latent + rope + latent,
        "prefill_attention_width": nope + rope + value,
        "sharded_params": sharded + heads * value * hidden,
        "kv_params": 0,
        "replicated_params": hidden * (query_latent + latent + rope),
        "norm_params": query_latent + latent,
    }


def _delta_net(fields: Fields, hidden: int) -> dict[str, Any]:
    """Gated delta net of Qwen3-Next: a convolution state and a matrix per value head."""
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
        ssm_dtype=fields.get("mamba_ssm_dtype"),
    )
    return _without_attention(
        spec,
        sharded_params=hidden * (conv_width + value_width + 2 * value_heads) + value_width * hidden,
        norm_params=conv_width * kernel + 2 * value_heads + value,
    )


def _mamba2(fields: Fields, hidden: int) -> dict[str, Any]:
    """Mamba 2 (Dao and Gu, 2024) as Nemotron-H has it: a convolution state, and a matrix per head."""
    heads, groups = fields.integer("mamba_num_heads"), fields.integer("n_groups")
    width, state = heads * fields.integer("mamba_head_dim"), fields.integer("ssm_state_size")
    kernel = fields.integer("conv_kernel")
    conv_width = width + 2 * groups * state
    spec = LayerSpec(
        "mamba",
        conv_values=(kernel - 1) * conv_width,
        conv_width=conv_width,
        ssm_values=width * state,
        state_heads=groups,
        ssm_dtype=fields.first("mamba_ssm_cache_dtype", "mamba_ssm_dtype"),
        prefill_checkpoint_alignment=1,
    )
    return _without_attention(
        spec,
        sharded_params=hidden * (width + conv_width + heads) + width * hidden,
        norm_params=conv_width * (kernel + bool(fields.get("use_conv_bias"))) + 3 * heads + width,
    )


def _num_experts(fields: Fields) -> int:
    return fields.count("n_routed_experts", "num_local_experts", "num_experts")


def _expert_width(fields: Fields) -> int:
    return fields.count("moe_intermediate_size") or fields.integer("intermediate_size")


def _dense_width(fields: Fields) -> int:
    if fields.get("intermediate_size_mlp"):  # Llama 4 names the experts' width intermediate_size
        return fields.integer("intermediate_size_mlp")
    return fields.integer("intermediate_size")


def _shared_width(fields: Fields) -> int:
    if fields.model_type == "llama4":
        return fields.integer("intermediate_size")
    if fields.get("shared_expert_intermediate_size") is not None:
        return fields.count("shared_expert_intermediate_size")
    return fields.count("n_shared_experts") * _expert_width(fields)


def _is_expert_layer(fields: Fields, index: int) -> bool:
    """Whether layer ``index`` routes to experts; families state it in different ways."""
    if not _num_experts(fields):
        return False
    if fields.get("moe_layers"):
        return index in fields["moe_layers"]
    if index < fields.count("first_k_dense_replace") or index in (fields.get("mlp_only_layers") or ()):
        return False
    if fields.model_type == "llama4":
        return (index + 1) % (fields.count("interleave_moe_layer_step") or 1) == 0
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, int):
        return index % frequency == 0
    return (index + 1) % (fields.count("decoder_sparse_step") or 1) == 0
