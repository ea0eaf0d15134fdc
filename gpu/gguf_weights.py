"""Weights and config from a GGUF file, the format of llama.cpp; quantised tensors are dequantised."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kvtwin.gpu.decoder_weights import check_shape
from kvtwin.gpu.errors import DeviceError, first_line
from kvtwin.gpu.gguf_config import read_gguf_config
from kvtwin.gpu.rope import Rope

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
        metadata, stored = _open(path)
        divisors = stored.pop(_ROPE_DIVISORS, None)
        self._tensors = {_name(name): tensor for name, tensor in stored.items()}
        config = read_gguf_config(
            metadata, {name: _shape(tensor) for name, tensor in self._tensors.items()}, self.label
        )
        if divisors is not None:
            check_shape(self.label, _ROPE_DIVISORS, _shape(divisors), (config.head_dim // 2,))
            config = replace(config, rope=Rope(config.rope.theta, tuple(self._dequantised(divisors).tolist())))
        self.config = config
        is_reordered = metadata["general.architecture"] == "llama"
        self._reordered = {"q_proj": config.num_query_heads, "k_proj": config.num_kv_heads} if is_reordered else {}

    def names(self) -> list[str]:
        """All tensors, under Hugging Face's names where they have one."""
        return list(self._tensors)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in float32. DeviceError: missing, of another shape, or of an unknown quantisation."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise DeviceError(f"{self.label}: {name} is missing")
        check_shape(self.label, name, _shape(tensor), shape)
        values = self._dequantised(tensor)
        heads = self._reordered.get(name.split(".")[-2])
        return values if heads is None else _halves_first(values, heads)

    def _dequantised(self, tensor: Any) -> Tensor:
        from gguf.quants import dequantize

        try:
            return torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise DeviceError(f"{self.label}: {tensor.name} is {kind}, which gguf cannot dequantise") from error


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Metadata, the tokenizer's left out, and tensors, by name."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        return metadata, {tensor.name: tensor for tensor in reader.tensors}
    except (OSError, ValueError, IndexError, KeyError, OverflowError) as error:
        raise DeviceError(f"{path}: not readable as GGUF ({first_line(error)})") from error


def _shape(tensor: Any) -> tuple[int, ...]:
    """Outputs first; GGUF counts from the innermost dimension."""
    return tuple(int(size) for size in reversed(tensor.shape))


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
