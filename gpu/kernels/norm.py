"""RMS norm of rows or heads, and of a sum that is kept."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MIN_ELEMENTS = 2048
"""Of a program: short rows, such as heads, are taken together."""


@triton.jit(do_not_specialize=["num_rows", "heads"])
def _norm_kernel(
    values,
    update,
    weight,
    total,
    output,
    num_rows,
    heads,
    token_stride,
    head_stride,
    update_stride,
    epsilon,
    N: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``ROWS`` rows of ``N``, each a head of a token. Where there is an update, the sum goes to ``total`` too."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)[None, :]
    is_value = (rows < num_rows)[:, None] & (columns < N)
    token, head = (rows // heads).to(tl.int64), rows % heads
    written = rows.to(tl.int64)[:, None] * N + columns
    row = tl.load(values + (token * token_stride + head * head_stride)[:, None] + columns, mask=is_value, other=0.0)
    if update is not None:
        added = tl.load(update + (token * update_stride)[:, None] + columns, mask=is_value, other=0.0)
        row = (row.to(tl.float32) + added.to(tl.float32)).to(row.dtype)
        tl.store(total + written, row, mask=is_value)
    row = row.to(tl.float32)
    row *= tl.rsqrt(tl.sum(row * row, 1) / N + epsilon)[:, None]
    row *= tl.load(weight + columns, mask=columns < N, other=0.0).to(tl.float32)
    tl.store(output + written, row.to(output.dtype.element_ty), mask=is_value)


def norm(values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm over the last dimension of ``[T, N]`` or ``[T, heads, N]``, contiguous in the last."""
    output = torch.empty_like(values, memory_format=torch.contiguous_format)
    _launch(values, None, weight, None, output, epsilon)
    return output


def add_and_norm(hidden: Tensor, update: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """``hidden + update``, ``[T, N]`` each, and the RMS norm of the sum."""
    total, output = torch.empty_like(update), torch.empty_like(update)
    _launch(hidden, update, weight, total, output, epsilon)
    return total, output


def _launch(
    values: Tensor, update: Tensor | None, weight: Tensor, total: Tensor | None, output: Tensor, epsilon: float
) -> None:
    if values.dim() == 2:
        values = values[:, None]
    num_tokens, heads, size = values.shape
    columns = triton.next_power_of_2(size)
    rows = max(1, _MIN_ELEMENTS // columns)
    _norm_kernel[(triton.cdiv(num_tokens * heads, rows),)](
        values,
        update,
        weight,
        total,
        output,
        num_tokens * heads,
        heads,
        *values.stride()[:2],
        0 if update is None else update.stride(0),
        epsilon,
        N=size,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=min(16, rows * columns // 512),  # 16 values per thread
    )
