"""Attention of sequences with many queries each, to all that the cache holds of them so far.

A program is one group of query heads of some consecutive tokens of one sequence. Sequences lie behind each other and
differ in length; a program finds out whose tokens it has.
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from kvtwin.gpu.kernels.launch_table import LaunchConstants
from kvtwin.gpu.kernels.online_softmax import add_tile, multiply


@triton.jit
def _first_program(query_starts, sequence, QUERIES: tl.constexpr):
    """Number of a sequence's first program. Every sequence gets one more than its start asks for, so that a rounded-up
    number fits between this and the next one's first; some programs have nothing to do."""
    return tl.load(query_starts + sequence) // QUERIES + sequence


@triton.jit
def _sequence_of(query_starts, program, num_sequences, QUERIES: tl.constexpr):
    """The last sequence whose first program is not after ``program``."""
    low, high = program * 0, num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        if _first_program(query_starts, middle, QUERIES) <= program:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _blocks(table, tokens, end, BLOCK_SIZE: tl.constexpr):
    """The block of each token before ``end``."""
    return tl.load(table + tokens // BLOCK_SIZE, mask=tokens < end, other=0)


@triton.jit(do_not_specialize=["block_tables", "query_starts", "context_tokens", "num_sequences", "table_stride"])
def _prefill_kernel(
    query,
    keys,
    values,
    block_tables,
    query_starts,
    context_tokens,
    output,
    num_sequences,
    query_token_stride,
    query_head_stride,
    block_stride,
    slot_stride,
    head_stride,
    table_stride,
    output_token_stride,
    output_head_stride,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
):
    QUERIES: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(1)
    # A sequence's last queries see most: they start first.
    program = _first_program(query_starts, 0, QUERIES) + tl.num_programs(0) - 1 - tl.program_id(0)
    sequence = _sequence_of(query_starts, program, num_sequences, QUERIES)
    first_row = tl.load(query_starts + sequence)
    num_queries = tl.load(query_starts + sequence + 1) - first_row
    begin = (program - _first_program(query_starts, sequence, QUERIES)) * QUERIES
    if begin >= num_queries:
        return
    computed = tl.load(context_tokens + sequence) - num_queries
    end = computed + tl.minimum(begin + QUERIES, num_queries)

    rows, dims = tl.arange(0, ROWS), tl.arange(0, HEAD_DIM)[None, :]
    queries = begin + rows // GROUP
    positions = computed + queries
    is_row = (rows < QUERIES * GROUP) & (queries < num_queries)
    token, head = (first_row + queries).to(tl.int64), kv_head * GROUP + rows % GROUP
    query_row = token * query_token_stride + head * query_head_stride
    query_tile = tl.load(query + query_row[:, None] + dims, mask=is_row[:, None], other=0.0)

    table = block_tables + sequence.to(tl.int64) * table_stride
    keys += kv_head.to(tl.int64) * head_stride
    values += kv_head.to(tl.int64) * head_stride
    blocks = _blocks(table, tl.arange(0, TILE), end, BLOCK_SIZE)
    result = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    peak = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    # Two loops: tiles that all queries see whole, and those on the diagonal.
    diagonal = (computed + begin + 1) // TILE * TILE
    for is_diagonal in tl.static_range(2):
        for start in range(diagonal if is_diagonal else 0, end if is_diagonal else diagonal, TILE):
            tokens = start + tl.arange(0, TILE)
            row = blocks.to(tl.int64) * block_stride + tokens % BLOCK_SIZE * slot_stride
            if is_diagonal:
                key = tl.load(keys + row[:, None] + dims, mask=(tokens < end)[:, None], other=0.0)
                value = tl.load(values + row[:, None] + dims, mask=(tokens < end)[:, None], other=0.0)
            else:
                key = tl.load(keys + row[:, None] + dims)
                value = tl.load(values + row[:, None] + dims)
            blocks = _blocks(table, tokens + TILE, end, BLOCK_SIZE)  # one turn ahead, as in decode.py
            products = multiply(query_tile, tl.trans(key))
            if is_diagonal:
                products = tl.where(tokens[None, :] <= positions[:, None], products, -float("inf"))
            result, peak, weight = add_tile(result, peak, weight, products, scale, value)

    output_row = token * output_token_stride + head * output_head_stride
    result = (result / weight[:, None]).to(output.dtype.element_ty)
    tl.store(output + output_row[:, None] + dims, result, mask=is_row[:, None])


def prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_starts: Tensor,
    context_tokens: Tensor,
    output: Tensor,
    first_row: int,
    constants: LaunchConstants,
) -> None:
    """Attend with the rows of ``query`` ``[T, num_query_heads, head_dim]`` from ``first_row`` on, into ``output``.

    ``query_starts[0]`` is ``first_row``. The rest is as in :class:`kvtwin.gpu.attention.AttentionBatch`; the caches
    have equal strides.
    """
    num_tokens, num_query_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group, num_sequences = num_query_heads // num_kv_heads, len(context_tokens)
    queries = constants.prefill_rows // group
    num_programs = num_tokens // queries - first_row // queries + num_sequences  # up to a sequence behind the last
    _prefill_kernel[(num_programs, num_kv_heads)](
        query,
        key_cache,
        value_cache,
        block_tables,
        query_starts,
        context_tokens,
        output,
        num_sequences,
        *query.stride()[:2],
        *key_cache.stride()[:3],
        block_tables.stride(0),
        *output.stride()[:2],
        head_dim**-0.5 * math.log2(math.e),
        GROUP=group,
        ROWS=constants.prefill_rows,
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        TILE=constants.prefill_tile_tokens,
        num_warps=constants.prefill_warps,
        num_stages=constants.prefill_stages,
    )
