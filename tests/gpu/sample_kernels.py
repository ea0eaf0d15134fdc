# ruff: noqa: N803, N806 - constants of kernels
"""A small kernel over paged keys and values, to be compiled as it should be and as it must not be."""

import io
import json
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl

from kvtwin.gpu.compile_check import __main__ as command
from kvtwin.gpu.compile_check.gates import Requirements, examine
from kvtwin.gpu.compile_check.offline_driver import compiling_for


@triton.jit(do_not_specialize=["token_stride"])
def attend_blocks(
    query, keys, values, out, table, num_tokens, token_stride,
    NUM_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_BLOCKS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HINT: tl.constexpr,
):  # fmt: skip
    """One sequence, one program: values weighted by the exponentials of their scores."""
    TILE_TOKENS: tl.constexpr = TILE_BLOCKS * BLOCK_SIZE
    dims, rows, offsets = tl.arange(0, HEAD_DIM), tl.arange(0, NUM_HEADS), tl.arange(0, TILE_TOKENS)
    q = tl.load(query + rows[:, None] * HEAD_DIM + dims[None, :])
    total = tl.zeros([NUM_HEADS, HEAD_DIM], tl.float32)
    for start in range(0, num_tokens, TILE_TOKENS):
        blocks = tl.load(table + start // BLOCK_SIZE + tl.arange(0, TILE_BLOCKS)).to(tl.int64)
        slots = tl.reshape(blocks[:, None] * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)[None, :], [TILE_TOKENS])
        row = slots * token_stride
        if HINT:
            row = tl.multiple_of(row, 16)
        mask = (start + offsets < num_tokens)[:, None]
        k = tl.load(keys + row[:, None] + dims[None, :], mask=mask, other=0.0)
        v = tl.load(values + row[:, None] + dims[None, :], mask=mask, other=0.0)
        weights = tl.exp2(tl.dot(q, tl.trans(k)))
        total = tl.dot(weights.to(v.dtype), v, total)
    tl.store(out + rows[:, None] * HEAD_DIM + dims[None, :], total.to(q.dtype))


def launch(
    *, num_heads: int = 16, tile_blocks: int = 4, num_tokens: int = 1000, hint: bool = True, **options: int
) -> None:
    """``options``: of the compiler."""
    query = torch.empty(num_heads, 128, dtype=torch.bfloat16)
    storage = torch.empty(64 * 16 * 256, dtype=torch.bfloat16)
    table = torch.zeros(64, dtype=torch.int32)
    attend_blocks[(1,)](
        query, storage, storage, torch.empty_like(query), table, num_tokens, 256,
        NUM_HEADS=num_heads, HEAD_DIM=128, TILE_BLOCKS=tile_blocks, BLOCK_SIZE=16, HINT=hint, **options,
    )  # fmt: skip


SAMPLES: dict[str, list[dict[str, Any]]] = {
    "sound": [{}, {}],
    "lost alignment": [{"hint": False}],
    "spilled": [{"num_heads": 32, "num_warps": 1}],
    "crowded": [{"tile_blocks": 16, "num_stages": 4, "num_warps": 8}],
    "too large": [{"tile_blocks": 64, "num_stages": 4, "num_warps": 8}],
    "compiled again": [{}, {"num_tokens": 992}],
}
"""Launches, by what becomes of the kernel."""


def main() -> None:
    """Print, as JSON, what is wrong by sample and architecture, and how the command ends when something is."""
    required = Requirements(wide_asynchronous_copies=2, matrix_instruction="HMMA", programs=2)
    broken: dict[str, dict[int, list[str]]] = {name: {} for name in SAMPLES}
    for name, launches in SAMPLES.items():
        for arch in (80, 90):
            with compiling_for(arch) as kernels:
                for options in launches:
                    launch(**options)
            ((_, broken[name][arch]),) = examine(kernels, lambda _: required)
    with redirect_stdout(io.StringIO()), patch.object(command, "launch_all", lambda *_: launch(hint=False)):
        status = command.main(["--arch", "90", "--model", "tiny", "--dtype", "bfloat16", "--block-size", "16"])
    print(json.dumps({"broken": broken, "status": status}))


if __name__ == "__main__":
    main()
