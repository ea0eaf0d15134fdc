"""Paged attention in plain torch: the reference, and what runs on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvtwin.gpu.attention import Attention, AttentionBatch, LayerCache


class TorchAttention(Attention):
    """One sequence at a time: gather its blocks, then attend."""

    def write(self, keys: Tensor, values: Tensor, layer: LayerCache, slots: Tensor) -> None:
        """See :class:`~kvtwin.gpu.attention.Attention`."""
        written = slots >= 0
        if not bool(written.all()):
            slots, keys, values = slots[written], keys[written], values[written]
        block_size = layer.keys.shape[1]
        blocks, offsets = slots // block_size, slots % block_size
        layer.keys[blocks, offsets] = keys
        layer.values[blocks, offsets] = values

    def attend(self, query: Tensor, layer: LayerCache, batch: AttentionBatch) -> Tensor:
        """See :class:`~kvtwin.gpu.attention.Attention`."""
        output = torch.empty_like(query)
        starts, contexts = batch.query_starts.tolist(), batch.context_tokens.tolist()
        for index, context_tokens in enumerate(contexts):
            start, end = starts[index], starts[index + 1]
            keys, values = _gather(layer, batch.block_tables[index], context_tokens)
            output[start:end] = attend_to(query[start:end], keys, values)
        return output

    def copy_blocks(self, storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """See :class:`~kvtwin.gpu.attention.Attention`."""
        storage[:, destinations] = storage[:, sources]


def attend_to(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of the last tokens, ``[q, heads, dim]``, to all ``[context, kv_heads, dim]``."""
    num_queries, context_tokens = query.shape[0], keys.shape[0]
    mask = None
    if 1 < num_queries < context_tokens:
        positions = torch.arange(context_tokens, device=query.device)
        mask = positions <= positions[-num_queries:, None]
    attended = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=num_queries > 1 and mask is None,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def _gather(layer: LayerCache, block_table: Tensor, context_tokens: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a sequence's tokens, ``[context, kv_heads, dim]`` each."""
    block_size = layer.keys.shape[1]
    blocks = block_table[: -(-context_tokens // block_size)].long()
    return (
        layer.keys[blocks].flatten(0, 1)[:context_tokens],
        layer.values[blocks].flatten(0, 1)[:context_tokens],
    )
