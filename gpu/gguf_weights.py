"""Weights and config from a GGUF file, the format of llama.cpp; quantised tensors are dequantised."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu.decoder_config import DecoderConfig, read_decoder_config
from gpu.decoder_weights import check_shape
from gpu.errors import DeviceError
from gpu.rope import Rope

_TURNED_VALUES = "rotary_dim"

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
    "rope_type": "rope.scaling.type",
    "factor": "rope.scaling.factor",
    _TURNED_VALUES: "rope.dimension_count",
}

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Tensors, and what Hugging Face calls them."""

_ROPE_DIVISORS = "rope_freqs.weight"


class GgufWeights:
    """The tensors of a GGUF file under Hugging Face's names, with the config that its metadata describe."""

    def __init__(self, path: Path) -> None:
        """DeviceError: damaged, or of a model that cannot be executed."""
        self.label = str(path)
        reader = _open(path)
        stored = {tensor.name: tensor for tensor in reader.tensors}
        divisors = stored.pop(_ROPE_DIVISORS, None)
        self._tensors = {_name(name): tensor for name, tensor in stored.items()}
        self.config = self._read_config(reader, divisors)
        reordered = reader.fields["general.architecture"].contents() == "llama"
        config = self.config
        self._reordered = {"q_proj": config.num_query_heads, "k_proj": config.num_kv_heads} if reordered else {}

    def names(self) -> list[str]:
        """All tensors, under Hugging Face's names where they have one."""
        return list(self._tensors)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in float32. DeviceError: missing, of another shape, or of an unknown quantisation."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise DeviceError(f"{self.label}: {name} is missing")
        check_shape(self.label, name, tensor.shape[::-1].tolist(), shape)
        values = self._dequantised(tensor)
        heads = self._reordered.get(name.split(".")[-2])
        return values if heads is None else _halves_first(values, heads)

    def _read_config(self, reader: Any, divisors: Any) -> DecoderConfig:
        def read(name: str) -> Any:
            return reader.fields[name].contents()

        try:
            architecture = read("general.architecture")
            known = {ours: read(f"{architecture}.{name}") for ours, name in _FIELDS.items()}
            vocab_size = int(self._tensors["model.embed_tokens.weight"].shape[-1])
        except KeyError as error:
            raise DeviceError(f"{self.label}: {error.args[0]} is missing") from None
        optional = {
            ours: read(f"{architecture}.{name}")
            for ours, name in _FIELDS_WITH_DEFAULT.items()
            if f"{architecture}.{name}" in reader.fields
        }
        turned_values = optional.pop(_TURNED_VALUES, None)
        scaling = {"rope_type": optional.pop("rope_type", "none"), "factor": optional.pop("factor", None)}
        fields = {
            "model_type": architecture,
            "vocab_size": vocab_size,
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "rope_scaling": None if scaling["rope_type"] == "none" else scaling,
        }
        config = read_decoder_config(fields | known | optional, self.label)
        if turned_values not in (None, config.head_dim):
            raise DeviceError(f"{self.label}: rope.dimension_count {turned_values} must be head_dim {config.head_dim}")
        if divisors is None:
            return config
        check_shape(self.label, _ROPE_DIVISORS, divisors.shape.tolist(), (config.head_dim // 2,))
        return replace(config, rope=Rope(config.rope.theta, tuple(self._dequantised(divisors).tolist())))

    def _dequantised(self, tensor: Any) -> Tensor:
        from gguf.quants import dequantize

        try:
            return torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        except NotImplementedError as error:
            raise DeviceError(
                f"{self.label}: {tensor.name} is {tensor.tensor_type.name}, which gguf cannot read"
            ) from error


def _open(path: Path) -> Any:
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise DeviceError(f"{path}: not readable as GGUF ({str(error).splitlines()[0]})") from error


def _name(name: str) -> str:
    """A tensor's name in Hugging Face's words; as it is if they have none."""
    if (layer := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)) and layer[2] in _IN_LAYER:
        return f"model.layers.{layer[1]}.{_IN_LAYER[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_OUTSIDE[stem]}.{kind}" if stem in _OUTSIDE else name


def _halves_first(rows: Tensor, num_heads: int) -> Tensor:
    """Undo llama.cpp's order of a query or key head's rows: there the two values of a rope pair are neighbours."""
    pairs = rows.view(num_heads, -1, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
