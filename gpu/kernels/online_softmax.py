"""What the attention kernels share: products of matrices, and a softmax over tiles of the context."""

from __future__ import annotations

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def multiply(left, right, total=None):
    """``left @ right``, added to ``total``; float32 in three products of tf32, which lose next to nothing."""
    if INTERPRETED:  # the interpreter keeps bfloat16 as 16-bit integers, and would multiply those
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="tf32x3")


@triton.jit
def add_tile(output, peak, weight, products, scale, values):
    """Attend to one tile more.

    products of queries and keys: [rows, tokens], which times ``scale`` are scores to the base 2; values: [tokens, dim];
    so far: output [rows, dim], not yet divided by weight [rows], and peak [rows], the highest score. At least one
    product of a row must have been finite by now.
    """
    new_peak = tl.maximum(peak, tl.max(products, 1) * scale)
    shares = tl.exp2(products * scale - new_peak[:, None])
    rescale = tl.exp2(peak - new_peak)
    weight = weight * rescale + tl.sum(shares, 1)
    output = multiply(shares.to(values.dtype), values, output * rescale[:, None])
    return output, new_peak, weight
