"""What is compiled: the project's own launchers, called as a decoder of one of these models would call them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kvtwin.gpu.attention import AttentionBatch
from kvtwin.gpu.layer_ops import Rotation
from kvtwin.gpu.paged_cache import PagedCache
from kvtwin.gpu.triton_attention import TritonAttention
from kvtwin.gpu.triton_layer_ops import TritonLayerOps

_CPU = torch.device("cpu")
_NUM_BLOCKS = 64


class Model(NamedTuple):
    """The shape of a decoder."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int


MODELS = {
    "llama-3.1-8b": Model(32, 8, 128, 4096, 14336),
    "llama-3.1-70b": Model(64, 8, 128, 8192, 28672),
    "llama-3.2-1b": Model(32, 8, 64, 2048, 8192),
    "llama-2-7b": Model(32, 32, 128, 4096, 11008),
    "qwen3-0.6b": Model(16, 8, 128, 1024, 3072),
    "smollm2-135m": Model(9, 3, 64, 576, 1536),
    "tiny": Model(8, 2, 32, 256, 688),
}
"""Groups of 1, 2, 3, 4 and 8 query heads, and head dims of 32, 64 and 128."""


class Batch(NamedTuple):
    """Queries of every sequence, single ones first, and the tokens that each sequence's last query sees."""

    query_tokens: list[int]
    context_tokens: int


_BATCHES = [
    Batch([1], 1),
    Batch([1] * 3, 100),
    Batch([1] * 16, 1024),
    Batch([7], 7),
    Batch([64, 16], 256),
    Batch([1, 1, 100], 1000),
]
"""Numbers that are 1, divide by 16 or do neither: Triton may compile a kernel again for each kind."""


def launch_all(arch: int, model: Model, dtype: torch.dtype, block_size: int) -> None:
    """Launch every kernel with all these batches."""
    attention = TritonAttention(arch)
    cache = PagedCache(2, _NUM_BLOCKS, block_size, model.num_kv_heads, model.head_dim, dtype=dtype, device=_CPU)
    for batch in _BATCHES:
        _launch_layer(attention, cache, model, dtype, batch)
    for num_copies in (1, 3, 16):
        storage = torch.empty(4, _NUM_BLOCKS, block_size, model.num_kv_heads, model.head_dim, dtype=dtype)
        blocks = torch.arange(num_copies)
        attention.copy_blocks(storage, blocks, blocks + num_copies)


def _launch_layer(
    attention: TritonAttention, cache: PagedCache, model: Model, dtype: torch.dtype, batch: Batch
) -> None:
    """What a decoder's layer launches, without its matrix products. Nothing runs, so that contents do not matter."""
    ops, layer = TritonLayerOps(), cache.layer(1)
    num_tokens, epsilon = sum(batch.query_tokens), 1e-5
    counts = [model.num_query_heads, model.num_kv_heads, model.num_kv_heads]
    heads = torch.empty(num_tokens, sum(counts), model.head_dim, dtype=dtype)
    query, keys, values = torch.split(heads, counts, dim=1)
    head_weight = torch.empty(model.head_dim, dtype=dtype)
    angles = torch.empty(num_tokens, model.head_dim // 2)
    query, keys = (ops.rotate(ops.norm(each, head_weight, epsilon), Rotation(angles, angles)) for each in (query, keys))
    inputs = _attention_batch(batch, cache.block_size)
    attention.write(keys, values, layer, inputs.slots)
    attention.attend(query, layer, inputs)
    hidden, weight = (
        torch.empty(num_tokens, model.hidden_size, dtype=dtype),
        torch.empty(model.hidden_size, dtype=dtype),
    )
    ops.norm(hidden, weight, epsilon)
    ops.add_and_norm(hidden, hidden, weight, epsilon)
    ops.gate(torch.empty(num_tokens, 2 * model.intermediate_size, dtype=dtype))


def _attention_batch(batch: Batch, block_size: int) -> AttentionBatch:
    query_tokens, num_sequences = batch.query_tokens, len(batch.query_tokens)
    return AttentionBatch(
        slots=torch.zeros(sum(query_tokens), dtype=torch.int64),
        query_starts=torch.tensor([0, *query_tokens]).cumsum(0).int(),
        context_tokens=torch.full((num_sequences,), batch.context_tokens, dtype=torch.int32),
        block_tables=torch.zeros(num_sequences, -(-batch.context_tokens // block_size), dtype=torch.int32),
        num_decodes=query_tokens.count(1),
        max_query_tokens=max(query_tokens),
        max_context_tokens=batch.context_tokens,
    )
