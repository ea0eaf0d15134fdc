"""One decoder layer from the fields of a config.json: what it keeps, and its parameters."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.hf_compressed import compressed_attention
from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.hf_layer_kinds import PlannedLayer, block
from kvtwin.engine.sizing.hf_mlp import expert_fields, mlp_params
from kvtwin.engine.sizing.hf_quantization import Quantization
from kvtwin.engine.sizing.hf_states import state_mixer, without_attention
from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, LayerSpec
from kvtwin.engine.sizing.model_shape import LayerShape, ModelConfigError, WeightFormat

INDEXER_SCALE_VALUES = 128
"""Values of an indexer's key that share one float32 scale (DeepSeek-V3.2, report of 2025)."""


def layer_shape(
    fields: Fields, index: int, planned: PlannedLayer, quantization: Quantization | None, dtype: str
) -> LayerShape:
    """Layer number ``index``: its attention or state, and its dense or expert MLP, in the checkpoint's bytes."""
    hidden = fields.integer("hidden_size")
    mixer = _mixer(fields, index, hidden, planned)
    norms = fields.count(".norms") + 2 * fields.flag("use_post_norm")
    mixer["norm_params"] += norms * hidden + _per_layer_input_params(fields, hidden)
    if weighs_residuals(fields):
        mixer["norm_params"] += 4 * hidden
    experts = expert_fields(fields, index, planned, hidden)
    sharded, replicated, unquantised = mlp_params(fields, index, planned, hidden, has_experts=bool(experts))
    if quantization:
        mixer_params = mixer["sharded_params"] + mixer["kv_params"] + mixer["replicated_params"]
        mixer["weight_format"] = _format(
            quantization, index, planned, (mixer_params, sharded + replicated), DTYPE_BYTES[dtype]
        )
    mixer["sharded_params"] += sharded
    mixer["replicated_params"] += replicated
    mixer["norm_params"] += unquantised
    return LayerShape(**mixer, **experts)


def weighs_residuals(fields: Fields) -> bool:
    """Kimi-K3: whether attention and MLP take a weighted sum of earlier layers' residuals: a norm and a row each."""
    return fields.model_type == "kimi_linear" and fields.has("attn_res_block_size")


def _per_layer_input_params(fields: Fields, hidden: int) -> int:
    """Gemma 3n and 4: what a layer makes of its own embedding; Gemma 3n: AltUp and LAuReL (its model card)."""
    width = fields.count("hidden_size_per_layer_input")
    if not width or fields.model_type not in ("gemma3n", "gemma4"):
        return 0
    params = 2 * hidden * width + hidden
    if fields.model_type == "gemma3n":
        streams = fields.integer("altup_num_inputs")
        params += 2 * hidden + hidden * streams + streams**2 + streams**3
        params += 2 * hidden * fields.integer("laurel_rank") + hidden
    return params


def _format(
    quantization: Quantization, index: int, planned: PlannedLayer, params: tuple[int, int], dtype_bytes: int
) -> WeightFormat:
    """The layer's bytes per parameter: what the checkpoint says of its modules, by their names in its files."""
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    if planned.state:
        names = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "mixer.in_proj", "mamba.in_proj")
    modules = [[f"model.layers.{index}.{name}" for name in names]]
    for mlp in ("mlp", "mlp.experts.0"):
        modules.append([f"model.layers.{index}.{mlp}.{name}" for name in ("gate_proj", "up_proj", "down_proj")])
    mixer, dense, experts = (quantization.mean_bytes(names, otherwise=dtype_bytes) for names in modules)
    total = sum(params)
    linear = (params[0] * mixer + params[1] * dense) / total if total else float(dtype_bytes)
    return WeightFormat(quantization.method, experts, linear, float(dtype_bytes))


def _mixer(fields: Fields, index: int, hidden: int, planned: PlannedLayer) -> dict[str, Any]:
    if planned.kind == "mlp":
        return without_attention(LayerSpec("mlp"), sharded_params=0, norm_params=0)
    if fields.model_type == "deepseek_v4":
        ratios = fields.per_layer("compress_ratios", max(index + 1, fields.num_layers()))
        return compressed_attention(fields, index, hidden, ratios[index])
    if planned.state:
        mixer = state_mixer(fields, hidden, planned.state)
        if planned.has_attention_too:
            attention = _attention(fields, index, hidden, PlannedLayer("full_attention"))
            mixer["before"] = (attention.pop("spec"),)
            for name in ("sharded_params", "norm_params", "replicated_params"):
                mixer[name] += attention.pop(name)
            mixer |= attention
        return mixer
    if fields.has("kv_lora_rank"):
        latent = _latent_attention(fields, index, hidden)
        return _expanded(fields, latent) if fields.model_type == "minicpm3" else latent
    return _attention(fields, index, hidden, planned)


def _attention(fields: Fields, index: int, hidden: int, planned: PlannedLayer) -> dict[str, Any]:
    heads, kv_heads, head, head_v = _heads(fields, index, hidden, planned)
    in_window = planned.kind == "sliding_window"
    query, key_value = heads * head, kv_heads * (head + head_v)
    gate = 2 if fields.flag("attn_output_gate") else 1
    sharded = hidden * query * gate + heads * head_v * hidden
    kv_params = 0 if planned.shares_cache else hidden * key_value
    norm_params = 0
    if fields.flag("attention_bias") and not fields.flag(".qkv_bias"):
        has_output_bias = fields.get("attention_out_bias") is not False
        sharded += query * gate + hidden * has_output_bias
        kv_params += key_value
    elif fields.flag(".qkv_bias") or fields.flag("qkv_bias"):
        sharded += query
        kv_params += key_value
    sharded += _gate_params(fields, hidden, heads, head)
    norm_params += _query_key_norms(fields, heads, kv_heads, head, planned.shares_cache)
    if _has_sinks(fields) or (in_window and fields.flag("add_swa_attention_sink_bias")):
        norm_params += heads  # one attention sink per head
    mixer: dict[str, Any] = {
        "spec": LayerSpec(
            planned.kind, kv_heads, head, head_v, planned.window_tokens, shares_cache=planned.shares_cache
        ),
        "query_heads": heads,
        "attention_width": head + head_v,
        "prefill_attention_width": head + head_v,
        "sharded_params": sharded,
        "kv_params": kv_params,
        "replicated_params": 0,
        "norm_params": norm_params,
    }
    if _attends_to_blocks(fields, index):
        _add_block_index(fields, hidden, mixer)
    return mixer


def _has_sinks(fields: Fields) -> bool:
    return fields.flag(".sinks") and fields.get("attention_sinks") is not False


def _gate_params(fields: Fields, hidden: int, heads: int, head: int) -> int:
    """A gate behind the attention, of each head or of each of its values, as Step, Laguna and AFMoE have it."""
    if fields.flag("use_head_wise_attn_gate"):
        return hidden * heads
    gating = fields.get("gating") if fields.model_type in ("laguna", "afmoe") else None
    return hidden * heads * (1 if gating in (True, "per-head") else head) if gating else 0


def _attends_to_blocks(fields: Fields, index: int) -> bool:
    """MiniMax-M3: whether the layer reads only the blocks of tokens that an index of its own picks."""
    if fields.model_type != "minimax_m3":
        return False
    sparse = fields.mapping("sparse_attention_config")
    if not sparse.stated() or sparse.get("use_sparse_attention") is False:
        return False
    return bool(sparse.per_layer("sparse_attention_freq", fields.num_layers())[0 if index < 0 else index])


def _add_block_index(fields: Fields, hidden: int, mixer: dict[str, Any]) -> None:
    """The index's key of each token, in 16 bits whatever the KV cache is in; queries of it for every KV head."""
    sparse = fields.mapping("sparse_attention_config")
    heads, head = sparse.integer("sparse_num_index_heads"), sparse.integer("sparse_index_dim")
    mixer["before"] = (LayerSpec("full_attention", 1, head, is_latent=True, fixed_token_bytes=2 * head),)
    mixer["kv_params"] += hidden * heads * head
    mixer["replicated_params"] += hidden * head
    mixer["norm_params"] += 2 * head


def _query_key_norms(fields: Fields, heads: int, kv_heads: int, head: int, shares_cache: bool) -> int:
    kind = fields.get(".qk_norm")
    if kind == "heads":
        return (heads + kv_heads) * head
    if kind == "head" or ((fields.flag("use_qk_norm") or fields.flag("qk_norm")) and fields.model_type != "llama4"):
        return head if shares_cache else 2 * head
    return 0


def _heads(fields: Fields, index: int, hidden: int, planned: PlannedLayer) -> tuple[int, int, int, int]:
    """Query heads, KV heads and the sizes of a key and of a value: families vary them by layer."""
    in_window = planned.kind == "sliding_window"
    if in_window and fields.has("swa_num_key_value_heads"):  # MiMo-V2
        head = fields.integer("swa_head_dim")
        heads, kv_heads = fields.integer("swa_num_attention_heads"), fields.integer("swa_num_key_value_heads")
        return heads, kv_heads, head, fields.integer("swa_v_head_dim", default=head)
    heads = _query_heads(fields, index)
    kv_heads = fields.integer("num_key_value_heads", "num_kv_heads", "num_attention_groups", default=heads)
    if in_window:
        heads = _heads_in_window(fields, heads)
    head = fields.integer("head_dim", "attention_head_dim", default=hidden // heads)
    if fields.has("block_configs"):
        attention = block(fields, index, fields.num_layers()).mapping("attention")
        group = attention.integer("n_heads_in_group")
        if heads % group:
            raise ModelConfigError(f"{fields.name}: n_heads_in_group {group} does not divide {heads} heads")
        kv_heads = heads // group
    if fields.model_type == "gemma4" and not in_window:
        head = fields.integer("global_head_dim")
        if fields.flag("attention_k_eq_v"):
            kv_heads = fields.integer("num_global_key_value_heads", default=kv_heads)
    if not head:
        raise ModelConfigError(f"{fields.name}: hidden_size {hidden} is too small for num_attention_heads {heads}")
    return heads, kv_heads, head, fields.integer("v_head_dim", default=head)


def _query_heads(fields: Fields, index: int) -> int:
    if not fields.has("num_attention_heads_per_layer"):
        return fields.integer("num_attention_heads")
    heads = fields.per_layer("num_attention_heads_per_layer", fields.num_layers())[index]
    return Fields({"num_attention_heads_per_layer": heads}, fields.name, "").integer("num_attention_heads_per_layer")


def _heads_in_window(fields: Fields, heads: int) -> int:
    """Step-3.5: layers with a window may have more query heads than the others."""
    if fields.model_type != "step3p5":
        return heads
    other = fields.mapping("attention_other_setting")
    if other.get("attention_type") == "sliding_attention":
        heads = other.integer("num_attention_heads")
    return fields.integer("num_sliding_attention_heads", default=heads)


def _latent_attention(fields: Fields, index: int, hidden: int) -> dict[str, Any]:
    """MLA (DeepSeek-V2 report, section 2.1): the cache holds one latent and one rope key per token."""
    heads = fields.integer("num_attention_heads")
    latent, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_latent = fields.count("q_lora_rank")
    sharded = (query_latent or hidden) * heads * (nope + rope) + latent * heads * (nope + value)
    mixer: dict[str, Any] = {
        "spec": LayerSpec("full_attention", 1, latent + rope, is_latent=True),
        "query_heads": heads,
        "attention_width": latent + rope + latent,
        "prefill_attention_width": nope + rope + value,
        "sharded_params": sharded + heads * value * hidden,
        "kv_params": 0,
        "replicated_params": hidden * (query_latent + latent + rope),
        "norm_params": query_latent + latent,
    }
    gate = fields.get("gated_attention_proj_granularity_type")
    if gate == "head_wise":
        mixer["sharded_params"] += hidden * heads
    if gate == "element_wise" or fields.flag("mla_use_output_gate"):
        mixer["sharded_params"] += hidden * heads * value
    if fields.get("index_topk") and _has_indexer(fields, index):
        _add_indexer(fields, hidden, query_latent, mixer)
    return mixer


def _expanded(fields: Fields, mixer: dict[str, Any]) -> dict[str, Any]:
    """MiniCPM3: vLLM computes keys and values from the latents and keeps these, values as wide as keys."""
    heads = fields.integer("num_attention_heads")
    head = fields.integer("qk_nope_head_dim") + fields.integer("qk_rope_head_dim")
    spec = LayerSpec("full_attention", heads, head, head)
    return mixer | {"spec": spec, "attention_width": 2 * head, "prefill_attention_width": 2 * head}


def _has_indexer(fields: Fields, index: int) -> bool:
    """Whether the layer chooses its tokens itself; others take the choice of a layer before them."""
    if fields.has("index_topk_pattern"):
        pattern = fields.per_layer("index_topk_pattern", 0 if index < 0 else fields.num_layers())
        return bool(pattern[index] != "S")
    offset = fields.integer("index_skip_topk_offset", default=2)
    return max(index - offset + 1, 0) % fields.integer("index_topk_freq", default=1) == 0


def _add_indexer(fields: Fields, hidden: int, query_latent: int, mixer: dict[str, Any]) -> None:
    """DeepSeek Sparse Attention: a key of 8-bit values per token, with scales, of which the indexer picks tokens."""
    heads, head = fields.integer("index_n_heads"), fields.integer("index_head_dim")
    token_bytes = head + head // INDEXER_SCALE_VALUES * 4
    mixer["beside"] = (LayerSpec("full_attention", 1, head, is_latent=True, fixed_token_bytes=token_bytes),)
    mixer["replicated_params"] += query_latent * heads * head + hidden * head
    mixer["norm_params"] += hidden * heads + 2 * head
