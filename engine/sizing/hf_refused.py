"""What cannot be read: models that vLLM does not serve as decoders, and fields that nobody read."""

from __future__ import annotations

import re
from typing import Any

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.engine.sizing.model_shape import ModelConfigError

_NO_LONGER_SERVED = {
    "MiniMaxText01ForCausalLM": "attn_type_list",
    "MiniMaxM1ForCausalLM": "attn_type_list",
    "MiniMaxVL01ForConditionalGeneration": "attn_type_list",
    "MiniMaxForCausalLM": "layer_types",
    "Phi4FlashForCausalLM": "sliding_window",
    "Plamo2ForCausalLM": "mamba_num_heads",
    "MllamaForConditionalGeneration": "cross_attention_layers",
}
"""Architectures that vLLM served before 0.33 and whose layers are no plain attention, with the field that says so."""

_LAYERS_OF_THEIR_OWN = {
    "AliceAI": "linear attention of its own",
    "Beam": "gates and scales of its own",
    "DeepseekV41": "compressed latents of another kind than DeepSeek-V4's",
    "Dory": "layers that run several times",
    "Dots3Note": "a cache of its own",
    "Flint": "attention sinks and shared caches of its own",
    "Glm5Next": "an indexer beside linear attention",
    "HYV4": "an indexer and hyper-connections of its own",
    "HrmText": "layers that run several times",
    "IQuestLoopCoder": "layers that run several times",
    "Inkling": "convolutions beside attention",
    "LongcatFlash": "two attentions in one layer",
    "MuseSpark": "shared caches of its own",
    "PanguProMoEV2": "attention sinks that take cache",
    "Qwen4Exp": "an indexer beside linear attention",
    "Step3Text": "queries made in two steps",
    "Step5": "an indexer and shared caches of its own",
    "Zamba2": "attention that several layers share",
}
"""Families that vLLM 0.33 serves with layers that nothing here knows, by how their architectures begin."""

_POOLING = re.compile(
    r"(ForSequenceClassification|ForTokenClassification|ForMaskedLM|ForProcessRewardModel|RewardModel|ForRetrieval"
    r"|BidirectionalModel|EmbedModel|EmbeddingModel|^(Bert|Roberta|XLMRoberta|ModernBert|NomicBert|Gte|GteNew|CLIP|Siglip"
    r"|Gemma3Text|Llama|Mistral|Qwen2|Qwen3|T5Encoder)Model)$"
)

_ENCODER_TYPES = ("bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "new", "gte", "clip", "siglip")

_NOT_MODELLED = {
    "cross_attention_layers": "cross-attention layers",
    "ssm_cfg": "Mamba layers",
    "rswa_window": "a window over generated tokens",
}
"""Fields that change what layers keep, of families that are not modelled."""

_LAYOUT = re.compile(
    r"window|sliding|swa_|_swa|mamba|ssm|linear_attn|linear_num|linear_key|linear_value|layer_types?$|layers_types?|block_type"
    r"|_pattern$|block_configs|kv_lora|kv_heads|key_value_heads|kv_shared|head_dim|global_|index_topk|indexer"
    r"|cross_att|recurrent|compress|attn_type|attention_type|conv_L|state_size|delta|kda|chunk_size|per_layer_config"
    r"|full_attn|full_attention|attn_layer|n_groups|hidden_size_per_head"
    r"|layer_group|attn_res|sparse_attention|attention_groups|attention_other"
)
"""Names of fields that may change what a layer keeps."""

_WITHOUT_EFFECT = frozenset(
    [
        "_sliding_window_pattern",
        "activation_sparsity_pattern",
        "add_full_attention_sink_bias",
        "add_swa_attention_sink_bias",
        "attention_chunk_size",
        "attn_rotary_emb",
        "attn_type_list",
        "chunk_size",
        "compress_rope_theta",
        "conv_dim",
        "full_attention_interval",
        "global_attn_every_n_layers",
        "global_partial_rotary_factor",
        "global_rope_theta",
        "head_dim",
        "hidden_size_per_layer_input",
        "index_head_dim",
        "index_n_heads",
        "index_topk",
        "indexer_rope_interleave",
        "indexer_types",
        "interleaved_sliding_window",
        "kda_lower_bound",
        "kda_safe_gate",
        "layer_types",
        "layers_block_type",
        "linear_conv_kernel_dim",
        "local_rope_theta",
        "mamba_chunk_size",
        "mamba_conv_bias",
        "mamba_d_ssm",
        "mamba_dt_init_floor",
        "mamba_dt_max",
        "mamba_dt_min",
        "mamba_dt_rank",
        "mamba_expand",
        "mamba_hidden_act",
        "mamba_inner_layernorms",
        "mamba_norm_before_gate",
        "mamba_proj_bias",
        "mamba_rms_norm",
        "mamba_ssm_cache_dtype",
        "mamba_ssm_dtype",
        "mamba_step",
        "mamba_use_mlp",
        "max_window_layers",
        "mlp_layer_types",
        "moe_layer_freq",
        "mtp_hybrid_override_pattern",
        "mtp_layer_types",
        "mtp_layers_block_type",
        "n_groups",
        "no_rope_layer_interval",
        "num_key_value_heads",
        "num_local_experts",
        "qk_head_dim",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "rescale_prenorm_residual",
        "rope_local_base_freq",
        "sliding_window",
        "sliding_window_pattern",
        "sliding_window_size",
        "ssm_in_multiplier",
        "ssm_multipliers",
        "ssm_out_multiplier",
        "ssm_state_size",
        "swa_rope_theta",
        "time_step_limit",
        "use_cache",
        "use_mamba_kernels",
        "use_sliding_window",
        "v_head_dim",
        "vision_feature_layer",
    ]
)
"""Those that are understood everywhere, also where a family's own rule leaves them unread."""


def refuse_by_name(config: dict[str, Any], language: dict[str, Any], name: str) -> None:
    """ModelConfigError: the model is no decoder, or has a field that no code here can read."""
    architectures = config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(entry, str) for entry in architectures):
        raise ModelConfigError(f"{name}: architectures must be a list of names, not {architectures!r}")
    for architecture in architectures:
        if architecture in _NO_LONGER_SERVED:
            field = _NO_LONGER_SERVED[architecture]
            raise ModelConfigError(f"{name}: {architecture} ({field}): vLLM 0.33 no longer serves this architecture")
        for family, layers in _LAYERS_OF_THEIR_OWN.items():
            if re.match(f"{family}(Text|Ngram)?For", architecture):
                raise ModelConfigError(f"{name}: {architecture} has {layers}, which is not modelled")
        if _POOLING.search(architecture):
            raise ModelConfigError(f"{name}: {architecture} is a pooling model: it generates nothing")
    model_type = str(language.get("model_type") or config.get("model_type") or "")
    if model_type in _ENCODER_TYPES:
        raise ModelConfigError(f"{name}: model_type {model_type!r} is an encoder: it generates nothing")
    for part in (config, language):
        if part.get("is_encoder_decoder"):
            raise ModelConfigError(f"{name}: is_encoder_decoder: encoder-decoder models are not modelled")
        kinds = part.get("attn_type_list") or []
        if not isinstance(kinds, list):
            raise ModelConfigError(f"{name}: attn_type_list must be a list, not {kinds!r}"[:200])
        if any(kind != 1 for kind in kinds):
            raise ModelConfigError(
                f"{name}: attn_type_list has linear attention of MiniMax-Text-01, which is not modelled"
            )
        for key, meaning in _NOT_MODELLED.items():
            if part.get(key):
                raise ModelConfigError(f"{name}: config.json has {key}, {meaning}, which is not modelled")


def refuse_unread(fields: Fields) -> None:
    """ModelConfigError: a field whose name says that it changes what layers keep, and that nobody read."""
    for key in fields.stated():
        if _LAYOUT.search(key) and key not in fields.read_keys and key not in _WITHOUT_EFFECT:
            raise ModelConfigError(
                f"{fields.name}: config.json has {key}, which may change what layers keep and is not read for "
                f"model_type {fields.model_type!r}"
            )
