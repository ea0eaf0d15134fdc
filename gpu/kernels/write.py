"""Storing keys and values in their slots."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TOKENS_PER_PROGRAM = 16


@triton.jit(do_not_specialize=["slots", "num_tokens"])
def _write_kernel(
    keys,
    values,
    slots,
    key_cache,
    value_cache,
    num_tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    slot_stride,
    head_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """One head of ``TOKENS`` tokens."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    slot = tl.load(slots + tokens, mask=tokens < num_tokens, other=-1)
    is_written = (slot >= 0)[:, None]
    token = tokens.to(tl.int64)
    key = tl.load(keys + (token * key_token_stride + head * key_head_stride)[:, None] + dims, mask=is_written)
    value = tl.load(values + (token * value_token_stride + head * value_head_stride)[:, None] + dims, mask=is_written)
    row = slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * slot_stride + head * head_stride
    tl.store(key_cache + row[:, None] + dims, key, mask=is_written)
    tl.store(value_cache + row[:, None] + dims, value, mask=is_written)


def write_kv(keys: Tensor, values: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store ``keys`` and ``values`` ``[T, num_kv_heads, head_dim]`` in caches of equal strides; slot -1: nowhere."""
    num_tokens, num_kv_heads, head_dim = keys.shape
    _write_kernel[(triton.cdiv(num_tokens, TOKENS_PER_PROGRAM), num_kv_heads)](
        keys,
        values,
        slots,
        key_cache,
        value_cache,
        num_tokens,
        *keys.stride()[:2],
        *values.stride()[:2],
        *key_cache.stride()[:3],
        BLOCK_SIZE=key_cache.shape[1],
        HEAD_DIM=head_dim,
        TOKENS=TOKENS_PER_PROGRAM,
    )
