"""Attention of sequences with one query each: the context is split among programs, and a second kernel joins them.

A program is one group of query heads in one split of one sequence. Its split depends on the sequence's length, which it
reads from the device: a launch is the same for all lengths, so that one CUDA graph serves them.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvtwin.gpu.kernels.launch_table import LaunchConstants
from kvtwin.gpu.kernels.online_softmax import add_tile, multiply

MIN_SPLIT_TOKENS = tl.constexpr(256)
"""A split is worth its cost (a program, and a float32 output per query head to join) from about here."""
MAX_SPLITS = 64
"""Of a sequence: of its outputs, joined by one program per query head."""
SPLITS_AT_ONCE = 32
"""Outputs that the joining program holds in registers."""


@triton.jit
def _split_tokens(context, num_splits, TILE: tl.constexpr):
    """Tokens of each of a sequence's splits; the last ones may be shorter or not needed."""
    return tl.maximum(tl.cdiv(tl.cdiv(context, num_splits), TILE) * TILE, MIN_SPLIT_TOKENS)


@triton.jit(do_not_specialize=["block_tables", "context_tokens", "table_stride"])
def _decode_kernel(
    query,
    keys,
    values,
    block_tables,
    context_tokens,
    split_outputs,
    split_weights,
    query_token_stride,
    query_head_stride,
    block_stride,
    slot_stride,
    head_stride,
    table_stride,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    kv_head, split, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    num_splits = tl.num_programs(1)
    context = tl.load(context_tokens + sequence)
    span = _split_tokens(context, num_splits, TILE)
    begin = split * span
    if begin >= context:
        return
    end = tl.minimum(begin + span, context)

    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)[None, :]
    is_head = rows < GROUP
    head = kv_head * GROUP + rows
    query_row = sequence * query_token_stride + head * query_head_stride
    queries = tl.load(query + query_row[:, None] + dims, mask=is_head[:, None], other=0.0)

    table = block_tables + sequence * table_stride
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    tokens = begin + tl.arange(0, TILE)
    blocks = tl.load(table + tokens // BLOCK_SIZE, mask=tokens < end, other=0)
    output = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    for start in range(begin, end, TILE):
        tokens = start + tl.arange(0, TILE)
        is_token = tokens < end
        row = blocks.to(tl.int64) * block_stride + tokens % BLOCK_SIZE * slot_stride
        key = tl.load(keys + row[:, None] + dims, mask=is_token[:, None], other=0.0)
        value = tl.load(values + row[:, None] + dims, mask=is_token[:, None], other=0.0)
        # The next tile's blocks are read one turn ahead: keys and values then are the loop's only loads that depend on
        # no other load of the same turn, and all stages of the pipeline go to them.
        following = tokens + TILE
        blocks = tl.load(table + following // BLOCK_SIZE, mask=following < end, other=0)
        products = tl.where(is_token[None, :], multiply(queries, tl.trans(key)), -float("inf"))
        output, peak, weight = add_tile(output, peak, weight, products, scale, value)

    part = (sequence * tl.num_programs(0) * GROUP + head) * num_splits + split
    tl.store(split_outputs + part[:, None] * HEAD_DIM + dims, output / weight[:, None], mask=is_head[:, None])
    tl.store(split_weights + part, peak + tl.log2(weight), mask=is_head)


@triton.jit(do_not_specialize=["context_tokens", "num_splits"])
def _join_kernel(
    split_outputs,
    split_weights,
    context_tokens,
    output,
    output_token_stride,
    output_head_stride,
    num_splits,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """One query head of one sequence, ``SPLITS`` splits at a time; their weights are logarithms to the base 2."""
    head, sequence = tl.program_id(0), tl.program_id(1).to(tl.int64)
    context = tl.load(context_tokens + sequence)
    span = _split_tokens(context, num_splits, TILE)
    dims = tl.arange(0, HEAD_DIM)
    first_part = (sequence * tl.num_programs(0) + head) * num_splits
    joined = tl.zeros([HEAD_DIM], tl.float32)
    peak = -float("inf")
    weight = 0.0
    for first in range(0, tl.cdiv(context, span), SPLITS):
        splits = first + tl.arange(0, SPLITS)
        is_split = splits * span < context
        part = first_part + splits
        weights = tl.load(split_weights + part, mask=is_split, other=-float("inf"))
        outputs = tl.load(split_outputs + part[:, None] * HEAD_DIM + dims, mask=is_split[:, None], other=0.0)
        new_peak = tl.maximum(peak, tl.max(weights, 0))
        shares = tl.exp2(weights - new_peak)
        rescale = tl.exp2(peak - new_peak)
        joined = joined * rescale + tl.sum(outputs * shares[:, None], 0)
        weight = weight * rescale + tl.sum(shares, 0)
        peak = new_peak
    row = sequence * output_token_stride + head * output_head_stride
    tl.store(output + row + dims, (joined / weight).to(output.dtype.element_ty))


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_tokens: Tensor,
    output: Tensor,
    max_context_tokens: int,
    constants: LaunchConstants,
) -> None:
    """Attend with ``query`` ``[S, num_query_heads, head_dim]``, one row per sequence, into ``output`` of that shape.

    The rest is as in :class:`kvtwin.gpu.attention.AttentionBatch`; the caches have equal strides.
    """
    num_sequences, num_query_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_query_heads // num_kv_heads
    num_splits = count_splits(num_sequences * num_kv_heads, max_context_tokens, constants.resident_decode_programs)
    split_outputs = query.new_empty((num_sequences, num_query_heads, num_splits, head_dim), dtype=torch.float32)
    split_weights = query.new_empty((num_sequences, num_query_heads, num_splits), dtype=torch.float32)
    _decode_kernel[(num_kv_heads, num_splits, num_sequences)](
        query,
        key_cache,
        value_cache,
        block_tables,
        context_tokens,
        split_outputs,
        split_weights,
        *query.stride()[:2],
        *key_cache.stride()[:3],
        block_tables.stride(0),
        head_dim**-0.5 * math.log2(math.e),
        GROUP=group,
        ROWS=16,  # of the tensor cores' smallest tile
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        TILE=constants.decode_tile_tokens,
        num_warps=4,
        num_stages=constants.decode_stages,
    )
    _join_kernel[(num_query_heads, num_sequences)](
        split_outputs,
        split_weights,
        context_tokens,
        output,
        *output.stride()[:2],
        num_splits,
        TILE=constants.decode_tile_tokens,
        SPLITS=SPLITS_AT_ONCE,
        HEAD_DIM=head_dim,
    )


def count_splits(num_programs: int, max_context_tokens: int, resident_programs: int) -> int:
    """Splits that a sequence may have: enough to fill the GPU, when one program each would be ``num_programs``.

    Eight times the programs that run at once keep it busy to the end though sequences differ in length. At least four
    each, so that one long sequence among many short ones is split too.
    """
    wanted = max(4, 8 * resident_programs // num_programs)
    return min(wanted, MAX_SPLITS, -(-max_context_tokens // MIN_SPLIT_TOKENS.value))
