"""Rope: heads turned by the angles of their token's position."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PAIRS_PER_PROGRAM = 1024


@triton.jit(do_not_specialize=["num_rows", "num_heads"])
def _rotate_kernel(
    heads,
    cosine,
    sine,
    output,
    num_rows,
    num_heads,
    token_stride,
    head_stride,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    """``ROWS`` heads of ``2 * HALF`` values."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs = tl.arange(0, HALF)[None, :]
    is_row = (rows < num_rows)[:, None]
    token, head = (rows // num_heads).to(tl.int64), rows % num_heads
    read = (token * token_stride + head * head_stride)[:, None] + pairs
    first = tl.load(heads + read, mask=is_row).to(tl.float32)
    second = tl.load(heads + read + HALF, mask=is_row).to(tl.float32)
    angle = token[:, None] * HALF + pairs
    cos = tl.load(cosine + angle, mask=is_row)
    sin = tl.load(sine + angle, mask=is_row)
    written = output + rows.to(tl.int64)[:, None] * (2 * HALF) + pairs
    tl.store(written, (first * cos - second * sin).to(output.dtype.element_ty), mask=is_row)
    tl.store(written + HALF, (second * cos + first * sin).to(output.dtype.element_ty), mask=is_row)


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn ``[T, heads, head_dim]``, contiguous in the last, by contiguous float32 ``[T, head_dim / 2]``."""
    num_tokens, num_heads, head_dim = heads.shape
    output = torch.empty_like(heads, memory_format=torch.contiguous_format)
    rows = 2 * _PAIRS_PER_PROGRAM // head_dim
    _rotate_kernel[(triton.cdiv(num_tokens * num_heads, rows),)](
        heads,
        cosine,
        sine,
        output,
        num_tokens * num_heads,
        num_heads,
        *heads.stride()[:2],
        ROWS=rows,
        HALF=head_dim // 2,
    )
    return output
