"""Limits of a server that a record says, and the options that say them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayOptions

GPU_BLOCK_SIZES = (16, 32, 64, 128, 256)
"""What --block-size may be on a GPU. A hybrid's logged size is another: vLLM plans it."""

_OPTIONS = {
    "num_gpu_blocks": "num_gpu_blocks_override",
    "block_size": "block_size",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
}
"""What a record says of a server, and the options that say it."""


def with_limits(record: str, limits: Mapping[str, int], options: ReplayOptions) -> ReplayOptions:
    """``options`` with what ``record`` says and they do not. UserError: they say something else."""
    missing = {}
    for name, option in _OPTIONS.items():
        theirs, ours = limits.get(name), getattr(options, option)
        if theirs is None or (option == "block_size" and theirs not in GPU_BLOCK_SIZES):
            continue
        if ours is None or (option == "block_size" and ours == ReplayOptions.block_size):
            missing[option] = theirs
        elif ours != theirs:
            raise UserError(f"--{option.replace('_', '-')} {ours}: the server of {record} had {theirs:,} ({name})")
    return replace(options, **missing)
