"""The MLP of a decoder layer: dense, or experts and what they share."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.hf_layer_kinds import PlannedLayer, block
from kvtwin.engine.sizing.model_shape import ModelConfigError


def expert_fields(fields: Fields, index: int, planned: PlannedLayer, hidden: int) -> dict[str, Any]:
    """The fields of a LayerShape for the layer's routed experts; none if it has none."""
    if not _is_expert_layer(fields, index, planned):
        return {}
    width = expert_width(fields)
    inner = latent_width(fields) or hidden
    bias = fields.flag(".expert_bias") * (2 * width + hidden)
    return {
        "num_experts": num_experts(fields),
        "active_experts": active_experts(fields),
        "expert_params": _matrices(fields) * inner * width + bias,
    }


def mlp_params(
    fields: Fields, index: int, planned: PlannedLayer, hidden: int, has_experts: bool
) -> tuple[int, int, int]:
    """Parameters beside the routed experts: of matrices that tensor parallelism divides, of those that it does not,
    and of what quantisation leaves out (routers, gates, norms)."""
    if planned.mlp == "none" or (planned.kind == "mlp" and planned.mlp == "auto" and not _is_block(fields)):
        return 0, 0, 0
    if not has_experts:
        return _matrices(fields) * hidden * dense_width(fields, index), 0, 0
    experts = num_experts(fields)
    router = hidden * experts + experts * (fields.flag(".expert_bias") or fields.flag(".router_bias"))
    shared_gate = hidden * fields.model_type.startswith(("qwen2_moe", "qwen3_next", "qwen3_5_moe"))
    shared = _matrices(fields) * hidden * shared_width(fields)
    latent = latent_width(fields)
    beside = _matrices(fields) * hidden * dense_width(fields, index) if fields.flag("enable_moe_block") else 0
    norms = 4 * hidden + experts if beside else 0  # Gemma 4: of the router, of experts and of the MLP beside them
    norms += latent * fields.flag("latent_moe_use_norm")
    return shared + beside, 2 * hidden * latent, router + shared_gate + norms


def widest_activation(fields: Fields, layers: list[PlannedLayer], hidden: int) -> int:
    """Values per token of the widest MLP: gate and up together, and their product."""
    widest = 0
    for index, planned in enumerate(layers):
        if _is_expert_layer(fields, index, planned):
            width = expert_width(fields)
            widest = max(widest, active_experts(fields) * (max(2 * width, hidden) + width))
        elif planned.mlp in ("auto", "dense") and (
            planned.kind != "mlp" or planned.mlp == "dense" or _is_block(fields)
        ):
            widest = max(widest, _matrices(fields) * dense_width(fields, index))
    return widest


def num_experts(fields: Fields) -> int:
    """Routed experts of a layer that has them; 0 in a dense model."""
    return fields.count("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")


def active_experts(fields: Fields) -> int:
    """Experts that one token uses."""
    return (
        fields.count(
            "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_k", "moe_top_k"
        )
        or 1
    )


def latent_width(fields: Fields) -> int:
    """The width into which a layer's input is projected for its experts; 0 where they take it as it is."""
    return fields.count("moe_latent_size", "routed_expert_hidden_size")


def expert_width(fields: Fields) -> int:
    """The inner width of one expert."""
    return fields.integer("moe_intermediate_size", "intermediate_size")


def dense_width(fields: Fields, index: int) -> int:
    """The inner width of layer ``index``'s dense MLP."""
    if fields.has("block_configs"):
        return _block_width(fields, index)
    if fields.model_type == "llama4":  # where intermediate_size is the experts' width
        return fields.integer("intermediate_size_mlp", "intermediate_size")
    if fields.model_type == "lfm2":
        return _lfm2_width(fields)
    if isinstance(fields.get("intermediate_size"), list):
        widths = fields.per_layer("intermediate_size", fields.num_layers())
        return Fields({"intermediate_size": widths[index]}, fields.name, fields.model_type).integer("intermediate_size")
    if fields.has("dense_intermediate_size"):
        return fields.integer("dense_intermediate_size")
    width = fields.integer("intermediate_size", "shared_intermediate_size")
    if fields.flag("use_double_wide_mlp"):
        first_shared = fields.num_layers() - fields.count("num_kv_shared_layers")
        return width * (2 if index >= first_shared else 1)
    return width


def shared_width(fields: Fields) -> int:
    """The inner width of the experts that every token uses, together."""
    if fields.model_type == "llama4":
        return fields.integer("intermediate_size")
    shared = fields.count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    if fields.has("moe_shared_expert_intermediate_size"):
        return fields.count("moe_shared_expert_intermediate_size") * shared
    if fields.has("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"):
        return fields.count("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
    return shared * expert_width(fields) if shared else 0


def _matrices(fields: Fields) -> int:
    return 3 if fields.flag(".gated") else 2


def _lfm2_width(fields: Fields) -> int:
    width = fields.integer("block_ff_dim", "intermediate_size")
    if fields.get("block_auto_adjust_ff_dim") is False:
        return width
    width = int(fields.number("block_ffn_dim_multiplier", 1.0) * int(2 * width / 3))
    multiple = fields.integer("block_multiple_of", default=256)
    return multiple * -(-width // multiple)


def _is_block(fields: Fields) -> bool:
    """Whether every layer states its own MLP (Nemotron-NAS)."""
    return fields.has("block_configs")


def _block_width(fields: Fields, index: int) -> int:
    ffn = block(fields, index, fields.num_layers()).mapping("ffn")
    if ffn.flag("no_op"):
        return 0
    hidden = fields.integer("hidden_size")
    if ffn.flag("replace_with_linear"):
        raise ModelConfigError(f"{fields.name}: block_configs: an MLP with replace_with_linear is not modelled")
    width = int(2 * ffn.number("ffn_mult", 1.0) * hidden / 3)
    return 256 * -(-width // 256)


def _is_expert_layer(fields: Fields, index: int, planned: PlannedLayer) -> bool:
    """Whether layer ``index`` routes to experts; families state it in different ways."""
    if planned.mlp != "auto":
        return planned.mlp == "experts"
    if planned.kind == "mlp" or not num_experts(fields):
        return False
    if fields.get("moe_layers"):
        return index in fields.layer_numbers("moe_layers")
    if fields.get("moe_layers_enum"):
        return index in fields.listed_numbers("moe_layers_enum")
    if fields.has("mlp_layer_types"):
        return bool(fields.per_layer("mlp_layer_types", fields.num_layers())[index] == "sparse")
    if index < fields.count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"):
        return False
    if index in fields.layer_numbers("mlp_only_layers"):
        return False
    if fields.model_type == "llama4":
        return (index + 1) % fields.integer("interleave_moe_layer_step", default=1) == 0
    if fields.has("expert_layer_period"):
        return index % fields.integer("expert_layer_period") == fields.count("expert_layer_offset")
    if isinstance(fields.get("moe_layer_freq"), list):
        return bool(fields.per_layer("moe_layer_freq", fields.num_layers())[index])
    if fields.has("moe_layer_freq"):
        return index % fields.integer("moe_layer_freq") == 0
    return (index + 1) % fields.integer("decoder_sparse_step", "moe_layer_interval", default=1) == 0
