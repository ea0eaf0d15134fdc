"""SwiGLU."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_COLUMNS_PER_PROGRAM = 1024


@triton.jit
def _gate_kernel(gate_up, output, token_stride, num_columns, COLUMNS: tl.constexpr):
    """``COLUMNS`` of one token."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = columns < num_columns
    gate = tl.load(gate_up + token * token_stride + columns, mask=is_column).to(tl.float32)
    up = tl.load(gate_up + token * token_stride + num_columns + columns, mask=is_column).to(tl.float32)
    gated = gate * tl.sigmoid(gate) * up
    tl.store(output + token * num_columns + columns, gated.to(output.dtype.element_ty), mask=is_column)


def gate(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of gate and up side by side, ``[T, 2 N]``; the result is ``[T, N]``."""
    num_tokens, num_columns = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty((num_tokens, num_columns))
    _gate_kernel[(num_tokens, triton.cdiv(num_columns, _COLUMNS_PER_PROGRAM))](
        gate_up, output, gate_up.stride(0), num_columns, COLUMNS=_COLUMNS_PER_PROGRAM
    )
    return output
