"""The config of a decoder from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtwin.gpu.decoder_config import DecoderConfig, read_decoder_config
from kvtwin.gpu.errors import DeviceError

_FIELDS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
"""Fields of a config.json, and what GGUF calls them behind the name of the architecture."""

_FIELDS_WITH_DEFAULT = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "num_local_experts": "expert_count",
}


def read_gguf_config(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], name: str) -> DecoderConfig:
    """From metadata by GGUF's names and the shapes of tensors by Hugging Face's: these tell what metadata do not.

    DeviceError: a field is missing, or the model cannot be executed.
    """
    try:
        architecture = metadata["general.architecture"]
        fields = {ours: metadata[f"{architecture}.{theirs}"] for ours, theirs in _FIELDS.items()}
        vocab_size = shapes["model.embed_tokens.weight"][0]
    except KeyError as error:
        raise DeviceError(f"{name}: {error.args[0]} is missing") from None
    for ours, theirs in _FIELDS_WITH_DEFAULT.items():
        fields[ours] = metadata.get(f"{architecture}.{theirs}")
    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        fields["rope_scaling"] = {"rope_type": scaling, "factor": metadata.get(f"{architecture}.rope.scaling.factor")}
    fields |= {
        "model_type": architecture,
        "vocab_size": vocab_size,
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in shapes,
    }
    config = read_decoder_config(fields, name)
    turned = metadata.get(f"{architecture}.rope.dimension_count", config.head_dim)
    if turned != config.head_dim:
        raise DeviceError(
            f"{name}: rope.dimension_count {turned} cannot be executed; expected head_dim {config.head_dim}"
        )
    return config
