"""Launch constants of the attention kernels: checked in, so that CUDA graphs and timings are the same every time.

Nothing is tuned at run time. The entries are the largest tiles that compile without spilling a register
(``python -m kvtwin.gpu.compile_check``); which of those is fastest can only be measured on a GPU.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from kvtwin.gpu.errors import DeviceError

BLOCK_SIZES = (16, 32, 64, 128, 256)
GROUPS = (*range(1, 9), 16)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class LaunchConstants(NamedTuple):
    """How attention is cut into programs. A pipeline of n stages has n - 1 tiles on their way to shared memory."""

    decode_tile_tokens: int
    """Tokens of the context that a decode program takes at once."""
    decode_stages: int
    decode_programs: int
    """Decode programs that a multiprocessor has room for."""
    prefill_rows: int
    """Rows of a prefill program: one per query token and query head of a group."""
    prefill_tile_tokens: int
    prefill_warps: int
    prefill_stages: int
    multiprocessors: int
    """Of the largest card of the architecture (data sheets of A100 and H200)."""

    @property
    def resident_decode_programs(self) -> int:
        """Decode programs that the whole GPU runs at once."""
        return self.decode_programs * self.multiprocessors


_CONSTANTS = {
    (80, 32, 16): LaunchConstants(64, 3, 8, 128, 64, 8, 3, 108),
    (80, 64, 16): LaunchConstants(64, 3, 4, 128, 64, 8, 3, 108),
    (80, 128, 16): LaunchConstants(64, 3, 2, 128, 64, 8, 3, 108),
    (80, 256, 16): LaunchConstants(32, 3, 2, 64, 32, 8, 2, 108),
    (80, 32, 32): LaunchConstants(32, 3, 6, 64, 32, 4, 3, 108),
    (80, 64, 32): LaunchConstants(32, 3, 3, 32, 32, 4, 3, 108),
    (80, 128, 32): LaunchConstants(32, 3, 1, 16, 32, 4, 2, 108),
    (90, 32, 16): LaunchConstants(64, 3, 8, 128, 64, 8, 3, 132),
    (90, 64, 16): LaunchConstants(64, 3, 6, 128, 64, 8, 3, 132),
    (90, 128, 16): LaunchConstants(64, 3, 3, 128, 64, 8, 3, 132),
    (90, 256, 16): LaunchConstants(32, 3, 3, 64, 32, 8, 2, 132),
    (90, 32, 32): LaunchConstants(32, 3, 7, 64, 32, 4, 3, 132),
    (90, 64, 32): LaunchConstants(32, 3, 4, 64, 32, 4, 3, 132),
    (90, 128, 32): LaunchConstants(32, 3, 2, 16, 32, 4, 2, 132),
}
"""By architecture (compute capability times 10), head dim, and bits of an element.

The number of query heads per key head is padded to the smallest tile of the tensor cores, and blocks are read token by
token: neither it nor the block size changes what fits.
"""


@cache
def launch_constants(
    arch: int, dtype: torch.dtype, head_dim: int, num_query_heads: int, num_kv_heads: int, block_size: int
) -> LaunchConstants:
    """The constants for a shape of attention; a GPU that is not in the table gets those of the nearest older one.

    Raises DeviceError where the kernels do not support it.
    """
    if arch < 80:
        raise DeviceError(f"the attention kernels need compute capability 8.0 or newer, not {arch / 10}")
    entry = (90 if arch >= 90 else 80, head_dim, 8 * dtype.itemsize)
    group, remainder = divmod(num_query_heads, num_kv_heads)
    if dtype not in DTYPES:
        raise DeviceError(f"the attention kernels take float16, bfloat16 and float32, not {dtype}")
    if entry not in _CONSTANTS:
        raise DeviceError(
            f"the attention kernels take head dims 32, 64, 128 (256 in 16 bits), not {head_dim} in {dtype}"
        )
    if block_size not in BLOCK_SIZES:
        raise DeviceError(f"the attention kernels take blocks of 16, 32, 64, 128 or 256 tokens, not {block_size}")
    if remainder or group not in GROUPS:
        raise DeviceError(
            f"the attention kernels take 1 to 8 or 16 query heads per key head, not {num_query_heads} to {num_kv_heads}"
        )
    return _CONSTANTS[entry]
