"""Copying whole blocks inside the cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ELEMENTS_PER_PROGRAM = 4096


@triton.jit(do_not_specialize=["sources", "destinations"])
def _copy_kernel(
    storage,
    sources,
    destinations,
    block_elements,
    plane_stride,
    block_stride,
    ELEMENTS: tl.constexpr,
):
    """``ELEMENTS`` of one block in one plane."""
    plane = storage + tl.program_id(1).to(tl.int64) * plane_stride
    elements = tl.program_id(2) * ELEMENTS + tl.arange(0, ELEMENTS)
    is_element = elements < block_elements
    source = tl.load(sources + tl.program_id(0)) * block_stride
    destination = tl.load(destinations + tl.program_id(0)) * block_stride
    tl.store(plane + destination + elements, tl.load(plane + source + elements, mask=is_element), mask=is_element)


def copy_blocks(storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """In every plane of ``storage``, ``[planes, num_blocks, ...]``, copy blocks; no block is source and destination.

    ``sources`` and ``destinations``: int64 ``[N]``. A block is contiguous.
    """
    num_planes, block_elements = storage.shape[0], storage[0, 0].numel()
    _copy_kernel[(len(sources), num_planes, triton.cdiv(block_elements, ELEMENTS_PER_PROGRAM))](
        storage,
        sources,
        destinations,
        block_elements,
        *storage.stride()[:2],
        ELEMENTS=ELEMENTS_PER_PROGRAM,
    )
