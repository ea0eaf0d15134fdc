"""Cases of paged attention, and what they must come to, in float64.

Whatever a case has no right to read is NaN: the slots behind a sequence's last token, the blocks that no sequence has,
and the block that unused entries of the tables name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kvtwin.gpu.attention import Attention, AttentionBatch, LayerCache

LIMITS = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Relative errors: a few roundings of one value."""


@dataclass(frozen=True, kw_only=True)
class PagedCase:
    """A step of some sequences, those with one query first.

    The first sequence's tokens are in the cache already and must not be written; the others' are written.
    """

    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    num_kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    block_size: int = 16
    seed: int = 0

    def __str__(self) -> str:
        sequences = " ".join(
            f"{queries}/{context}" for queries, context in zip(self.queries, self.contexts, strict=True)
        )
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype} dim {self.head_dim} group {self.group} block {self.block_size}: {sequences}"


class PagedStep(NamedTuple):
    """A case as tensors. ``keys`` and ``values`` are the step's own, NaN where they must not be written."""

    query: Tensor
    keys: Tensor
    values: Tensor
    layer: LayerCache
    batch: AttentionBatch
    expected: Tensor

    def run(self, attention: Attention) -> Tensor:
        attention.write(self.keys, self.values, self.layer, self.batch.slots)
        return attention.attend(self.query, self.layer, self.batch)

    def error(self, attention: Attention) -> float:
        """Relative to the largest value; NaN if anything is."""
        difference = self.run(attention).double() - self.expected
        return float(difference.abs().max() / self.expected.abs().max())

    def with_table_entry(self, sequence: int, position: int, block: int) -> PagedStep:
        tables = self.batch.block_tables.clone()
        tables[sequence, position] = block
        return self._replace(batch=replace(self.batch, block_tables=tables))


def step_of(case: PagedCase, layer: LayerCache | None = None) -> PagedStep:
    """The tensors of a case. Queries, keys and values are slices of one product, as in a decoder."""
    random = torch.Generator().manual_seed(case.seed)
    num_tokens, width = sum(case.queries), 1 + max(blocks_of(case, context) for context in case.contexts)
    layer = layer or empty_layer(case)
    free = (1 + torch.randperm(len(layer.keys) - 2, generator=random)).tolist()  # neither the first nor the last
    tables = torch.full((len(case.contexts), width), len(layer.keys) - 1, dtype=torch.int32)
    num_query_heads = case.group * case.num_kv_heads
    heads = num_query_heads + 2 * case.num_kv_heads
    fused = torch.randn(num_tokens, heads, case.head_dim, generator=random).to(case.dtype)
    query, keys, values = fused.split([num_query_heads, case.num_kv_heads, case.num_kv_heads], dim=1)
    starts = [0, *accumulate(case.queries)]
    slots, expected = [], []
    for index, context in enumerate(case.contexts):
        blocks = torch.tensor([free.pop() for _ in range(blocks_of(case, context))])
        tables[index, : len(blocks)] = blocks
        mine = slice(starts[index], starts[index + 1])
        before = context - case.queries[index]
        all_keys, all_values = (
            torch.cat([torch.randn(before, *new.shape[1:], generator=random).to(case.dtype), new[mine]])
            for new in (keys, values)
        )
        positions = torch.arange(context)
        where = blocks[positions // case.block_size], positions % case.block_size
        filled = slice(0, before if index else context)
        layer.keys[where[0][filled], where[1][filled]] = all_keys[filled]
        layer.values[where[0][filled], where[1][filled]] = all_values[filled]
        new_slots = (where[0] * case.block_size + where[1])[before:]
        slots.append(new_slots if index else torch.full_like(new_slots, -1))
        expected.append(dense_attention(query[mine], all_keys, all_values))
    fused[: case.queries[0], num_query_heads:] = torch.nan
    batch = AttentionBatch(
        slots=torch.cat(slots),
        query_starts=torch.tensor(starts, dtype=torch.int32),
        context_tokens=torch.tensor(case.contexts, dtype=torch.int32),
        block_tables=tables,
        num_decodes=case.queries.count(1),
        max_query_tokens=max(case.queries),
        max_context_tokens=max(case.contexts),
    )
    return PagedStep(query, keys, values, layer, batch, torch.cat(expected))


def blocks_of(case: PagedCase, context: int) -> int:
    return -(-context // case.block_size)


def empty_layer(case: PagedCase) -> LayerCache:
    num_blocks = 4 + sum(blocks_of(case, context) for context in case.contexts)
    shape = (2, num_blocks, case.block_size, case.num_kv_heads, case.head_dim)
    return LayerCache(*torch.full(shape, torch.nan, dtype=case.dtype))


def dense_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention of the last tokens to all, one head and one query at a time."""
    num_queries, num_query_heads, head_dim = query.shape
    context, num_kv_heads, _ = keys.shape
    output = torch.empty(query.shape, dtype=torch.float64)
    for head in range(num_query_heads):
        key, value = (each[:, head * num_kv_heads // num_query_heads].double() for each in (keys, values))
        for row in range(num_queries):
            seen = context - num_queries + row + 1
            scores = key[:seen] @ query[row, head].double() / head_dim**0.5
            output[row, head] = scores.softmax(0) @ value[:seen]
    return output


DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_EDGES = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129)


def _mixed(index: int, **shape: Any) -> PagedCase:
    """Two decodes, a chunk in the middle of a prompt and a whole short prompt, with lengths at edges of blocks."""
    one, another, before = (_EDGES[index * step % len(_EDGES)] for step in (1, 3, 5))
    chunk, whole = 2 + index % 40, 2 + index % 9
    return PagedCase(queries=(1, 1, chunk, whole), contexts=(one, another, chunk + before, whole), **shape)


SHAPES = [
    _mixed(
        3 * index + which,
        dtype=dtype,
        head_dim=head_dim,
        group=group,
        block_size=block_size,
        num_kv_heads=1 + index % 2,
    )
    for which, dtype in enumerate(DTYPES)
    for index, (head_dim, group, block_size) in enumerate(
        (head_dim, group, block_size)
        for head_dim in (32, 64, 128)
        for group in (1, 2, 3, 4, 8)
        for block_size in (16, 32, 64)
    )
]
"""All combinations of dtype, head dim, group and block size."""
