"""Attention problems to measure: sequences over a paged cache whose blocks lie in no order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from kvtwin.gpu.attention import AttentionBatch, LayerCache
from kvtwin.gpu.benchmark.timing import NUM_ROTATED
from kvtwin.gpu.paged_cache import PagedCache

BLOCK_SIZE = 16


class Shape(NamedTuple):
    """Heads and their size."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int


LLAMA_8B = Shape(32, 8, 128)


@dataclass(frozen=True, slots=True)
class Problem:
    """One step of attention: ``query_tokens`` and ``context_tokens`` by sequence, and its tensors.

    There are as many layers, each with a query of its own, as calls are to go through in turn.
    """

    name: str
    shape: Shape
    query_tokens: list[int]
    context_tokens: list[int]
    queries: list[Tensor]
    layers: list[LayerCache]
    batch: AttentionBatch

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one query."""
        return max(self.query_tokens) == 1

    @property
    def kv_bytes(self) -> int:
        """What a call has to read of the cache."""
        row_bytes = self.shape.num_kv_heads * self.shape.head_dim * self.queries[0].itemsize
        return 2 * sum(self.context_tokens) * row_bytes

    @property
    def flop(self) -> int:
        """Multiplications and additions of both products, without what the causal mask leaves out."""
        pairs = sum(
            queries * (context - queries) + queries * (queries + 1) // 2
            for queries, context in zip(self.query_tokens, self.context_tokens, strict=True)
        )
        return 4 * self.shape.num_query_heads * self.shape.head_dim * pairs


def make_problem(
    name: str,
    query_tokens: list[int],
    context_tokens: list[int],
    *,
    shape: Shape,
    dtype: torch.dtype,
    device: torch.device,
) -> Problem:
    """Tensors of random numbers. Sequences with one query come first, as attention wants them."""
    num_blocks = [-(-context // BLOCK_SIZE) for context in context_tokens]
    cache = PagedCache(
        NUM_ROTATED,
        1 + sum(num_blocks),
        BLOCK_SIZE,
        shape.num_kv_heads,
        shape.head_dim,
        dtype=dtype,
        device=device,
    )
    layers = [cache.layer(index) for index in range(NUM_ROTATED)]
    for layer in layers:
        layer.keys.normal_()
        layer.values.normal_()
    blocks = list(range(1, 1 + sum(num_blocks)))
    Random(0).shuffle(blocks)
    tables = torch.zeros(len(num_blocks), max(num_blocks), dtype=torch.int32)
    ends = list(accumulate(num_blocks))
    for row, number, end in zip(tables, num_blocks, ends, strict=True):
        row[:number] = torch.tensor(blocks[end - number : end], dtype=torch.int32)
    num_tokens = sum(query_tokens)
    batch = AttentionBatch(
        slots=torch.full((num_tokens,), -1, dtype=torch.int64, device=device),
        query_starts=torch.tensor([0, *accumulate(query_tokens)], dtype=torch.int32, device=device),
        context_tokens=torch.tensor(context_tokens, dtype=torch.int32, device=device),
        block_tables=tables.to(device),
        num_decodes=query_tokens.count(1),
        max_query_tokens=max(query_tokens),
        max_context_tokens=max(context_tokens),
    )
    queries = [torch.randn(num_tokens, shape.num_query_heads, shape.head_dim, device=device).to(dtype) for _ in layers]
    return Problem(name, shape, query_tokens, context_tokens, queries, layers, batch)


def ragged_lengths(num_sequences: int, shortest: int, longest: int, total: int) -> list[int]:
    """Lengths between two bounds, the same every time, that add up to ``total``."""
    random = Random(0)
    lengths = [random.randint(shortest, longest) for _ in range(num_sequences)]
    while (missing := total - sum(lengths)) != 0:
        index = random.randrange(num_sequences)
        lengths[index] = min(longest, max(shortest, lengths[index] + missing))
    return lengths
