"""What a compiled kernel must not be: too large for the GPU, spilled, or reading memory in small pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton.compiler import CompiledKernel

from kvtwin.gpu.compile_check.binary import Binary, read_binary

_KIB = 1024
_REGISTERS = 65_536
"""32-bit registers of a multiprocessor; a warp gets them in units of 256 (CUDA C++ Programming Guide, table of
technical specifications per compute capability)."""
_RESERVED_BYTES = _KIB
"""Shared memory that the system takes per program (same table)."""


@dataclass(frozen=True)
class SharedMemory:
    """Of a compute capability, in bytes: what one program may have, and what a multiprocessor has."""

    program_bytes: int
    multiprocessor_bytes: int


SHARED_MEMORY = {
    80: SharedMemory(163 * _KIB, 164 * _KIB),
    86: SharedMemory(99 * _KIB, 100 * _KIB),
    89: SharedMemory(99 * _KIB, 100 * _KIB),
    90: SharedMemory(227 * _KIB, 228 * _KIB),
    100: SharedMemory(227 * _KIB, 228 * _KIB),
    120: SharedMemory(99 * _KIB, 100 * _KIB),
}
"""By compute capability times 10 (same table)."""


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a kernel is expected to be on top of fitting into the GPU."""

    programs: int = 1
    """Programs that its launch counts on having on a multiprocessor at once."""
    wide_asynchronous_copies: int = 0
    """128-bit copies from global to shared memory (LDGSTS) that it has at least."""
    narrow_loads: bool = False
    """Whether it may load from global memory in pieces of less than 32 bits."""
    matrix_instruction: str | None = None
    """What it multiplies with: HMMA on all tensor cores, HGMMA (wgmma) on sm_90."""


def examine(
    kernels: Sequence[CompiledKernel], required: Callable[[Binary], Requirements]
) -> list[tuple[Binary, list[str]]]:
    """The different ones among launched kernels, and what is wrong with each.

    A kernel that is compiled again when a batch changes stops a server for a second, in the middle of its work.
    """
    binaries = [read_binary(kernel) for kernel in {kernel.hash: kernel for kernel in kernels}.values()]
    same = Counter(map(_constants, binaries))
    examined = []
    for binary in {_constants(binary): binary for binary in binaries}.values():
        broken = broken_gates(binary, required(binary))
        if (number := same[_constants(binary)]) > 1:
            broken.append(f"compiled {number} times, as numbers other than constants change")
        examined.append((binary, broken))
    return examined


def _constants(binary: Binary) -> tuple[object, ...]:
    return binary.name, *binary.constants.items()


def broken_gates(binary: Binary, required: Requirements) -> list[str]:
    """What is wrong with the binary, in a few words each."""
    limits = SHARED_MEMORY[binary.arch]
    broken = []
    if binary.shared_bytes > limits.program_bytes:
        broken.append(f"{binary.shared_bytes:,} bytes of shared memory, at most {limits.program_bytes:,}")
    if (fit := programs_per_multiprocessor(binary)) < required.programs:
        broken.append(f"{fit} programs fit on a multiprocessor, not {required.programs}")
    if binary.stack_bytes or binary.local_bytes or binary.spills:
        broken.append(f"spills: {binary.stack_bytes} bytes of stack, {binary.spills} instructions")
    if (copies := binary.count("LDGSTS", width_bits=128)) < required.wide_asynchronous_copies:
        broken.append(f"{copies} LDGSTS.128, at least {required.wide_asynchronous_copies}")
    if not required.narrow_loads and (narrow := [width for width in binary.widths_bits("LDG") if width < 32]):
        broken.append(f"loads of {narrow[0]} bits")
    if required.matrix_instruction and not binary.count(required.matrix_instruction):
        broken.append(f"no {required.matrix_instruction}")
    return broken


def programs_per_multiprocessor(binary: Binary) -> int:
    """How many programs registers and shared memory leave room for."""
    warps = binary.num_threads // 32
    registers = warps * -(-32 * binary.registers // 256) * 256
    return min(
        _REGISTERS // registers,
        SHARED_MEMORY[binary.arch].multiprocessor_bytes // (binary.shared_bytes + _RESERVED_BYTES),
    )
