"""What is expected of each of the project's kernels."""

from __future__ import annotations

import torch

from kvtwin.gpu.compile_check.binary import Binary
from kvtwin.gpu.compile_check.gates import Requirements
from kvtwin.gpu.kernels.launch_table import LaunchConstants


def requirements(binary: Binary, dtype: torch.dtype, constants: LaunchConstants) -> Requirements:
    """For a kernel on values of ``dtype`` that was launched with ``constants``.

    Attention must bring every tile of keys and values by the widest copies there are. Of other kernels nothing in
    particular is expected.
    """
    if binary.name not in ("_decode_kernel", "_prefill_kernel"):
        is_head = binary.name == "_norm_kernel" and binary.constants["N"] < binary.num_threads * 4
        return Requirements(narrow_loads=is_head)  # its weight: a value per thread or two
    tile_bytes = binary.constants["TILE"] * binary.constants["HEAD_DIM"] * dtype.itemsize
    copies = 2 * tile_bytes // (16 * binary.num_threads)
    if binary.name == "_decode_kernel":
        return Requirements(
            programs=constants.decode_programs, wide_asynchronous_copies=copies, matrix_instruction="HMMA"
        )
    return Requirements(
        wide_asynchronous_copies=copies,
        matrix_instruction="HGMMA" if binary.arch == 90 and dtype.itemsize == 2 else None,
    )
