"""The weights of a decoder on a device, put together from a source of tensors with Hugging Face's names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kvtwin.gpu.decoder_config import DecoderConfig
from kvtwin.gpu.errors import DeviceError, memory_for
from kvtwin.gpu.host_memory import check_host_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Matrices are [outputs, inputs]; projections of the same input are one matrix."""

    attention_norm: Tensor
    qkv: Tensor
    """Rows of all query heads, then key heads, then value heads."""
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    """Rows of the gate, then of what it gates."""
    down: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """All weights, of one dtype and on one device."""

    embedding: Tensor
    """[vocab, hidden]."""
    layers: list[LayerWeights]
    final_norm: Tensor
    head: Tensor
    """[vocab, hidden]; the embedding itself if they are tied."""


class WeightSource(Protocol):
    """Tensors by name, as Hugging Face's Llama, Qwen2 and Qwen3 checkpoints name them."""

    @property
    def label(self) -> str:
        """What errors call it."""

    def names(self) -> Collection[str]:
        """All tensors that a model must ask for."""

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape, in any floating dtype and on any device. DeviceError: missing or different."""


def build_weights(
    config: DecoderConfig, source: WeightSource, device: torch.device, dtype: torch.dtype
) -> DecoderWeights:
    """Read every tensor once, layer by layer, so that little more than the weights themselves is in memory.

    DeviceError: a tensor is missing, different or left over. OutOfDeviceMemory: too little memory.
    """
    if device.type == "cpu":
        check_host_memory(config.num_matrix_values * dtype.itemsize, f"{config.name}: {source.label}")
    with memory_for(f"{source.label}: the weights do not fit into the memory of {device}"):
        return _build(config, source, device, dtype)


def _build(config: DecoderConfig, source: WeightSource, device: torch.device, dtype: torch.dtype) -> DecoderWeights:
    left_over = set(source.names())
    hidden, vocab = config.hidden_size, config.vocab_size
    query, key_value, inner = config.query_size, config.key_value_size, config.intermediate_size

    def read(name: str, *shape: int) -> Tensor:
        left_over.discard(name)
        return source.read(name, shape).to(device, dtype).contiguous()

    def fused(prefix: str, suffix: str, parts: dict[str, int], *inputs: int) -> Tensor:
        return torch.cat([read(f"{prefix}{part}.{suffix}", rows, *inputs) for part, rows in parts.items()])

    embedding = read("model.embed_tokens.weight", vocab, hidden)
    layers = []
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        attention, mlp = layer + "self_attn.", layer + "mlp."
        qkv = {"q_proj": query, "k_proj": key_value, "v_proj": key_value}
        layers.append(
            LayerWeights(
                attention_norm=read(layer + "input_layernorm.weight", hidden),
                qkv=fused(attention, "weight", qkv, hidden),
                qkv_bias=fused(attention, "bias", qkv) if config.qkv_bias else None,
                query_norm=read(attention + "q_norm.weight", config.head_dim) if config.qk_norm else None,
                key_norm=read(attention + "k_norm.weight", config.head_dim) if config.qk_norm else None,
                output=read(attention + "o_proj.weight", hidden, query),
                output_bias=read(attention + "o_proj.bias", hidden) if config.output_bias else None,
                mlp_norm=read(layer + "post_attention_layernorm.weight", hidden),
                gate_up=fused(mlp, "weight", {"gate_proj": inner, "up_proj": inner}, hidden),
                down=read(mlp + "down_proj.weight", hidden, inner),
            )
        )
    final_norm = read("model.norm.weight", hidden)
    if config.tied_embeddings:
        left_over.discard("lm_head.weight")  # some files hold the same matrix twice
        head = embedding
    else:
        head = read("lm_head.weight", vocab, hidden)
    if left_over:
        raise DeviceError(
            f"{source.label}: {min(left_over)} does not belong to the model of its config"
            + (f", nor do {len(left_over) - 1} more" if len(left_over) > 1 else "")
        )
    return DecoderWeights(embedding=embedding, layers=layers, final_norm=final_norm, head=head)


def check_shape(label: str, name: str, found: Sequence[int], expected: tuple[int, ...]) -> None:
    """DeviceError if a tensor has another shape than the config asks for."""
    if tuple(found) != expected:
        raise DeviceError(f"{label}: {name} has shape {list(found)}; the config asks for {list(expected)}")
