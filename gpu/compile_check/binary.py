"""What the compiler made of a kernel, read from its binary with NVIDIA's tools (Triton brings them along)."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton import knobs
from triton.compiler import CompiledKernel

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
_WIDTH_BITS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


@dataclass(frozen=True)
class Binary:
    """One kernel for one architecture.

    ``constants`` are its compile-time arguments, and those that are None. Shared memory is per program, stack and local
    memory per thread. ``instructions`` counts names with their modifiers, such as LDG.E.128.
    """

    name: str
    arch: int
    constants: dict[str, Any]
    num_threads: int
    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    instructions: Counter[str]

    def count(self, opcode: str, *, width_bits: int | None = None) -> int:
        """How many instructions have this name, and this width where one is given."""
        return sum(
            number
            for instruction, number in self.instructions.items()
            if instruction.split(".")[0] == opcode and width_bits in (None, _width_bits(instruction))
        )

    def widths_bits(self, opcode: str) -> list[int]:
        """The widths of all instructions of this name, each once, from narrow to wide."""
        return sorted({_width_bits(each) for each in self.instructions if each.split(".")[0] == opcode})

    @property
    def spills(self) -> int:
        """Loads from and stores to local memory: registers that did not fit."""
        return self.count("LDL") + self.count("STL")


def _width_bits(instruction: str) -> int:
    return next((_WIDTH_BITS[part] for part in instruction.split(".")[1:] if part in _WIDTH_BITS), 32)


def read_binary(kernel: CompiledKernel) -> Binary:
    """Disassemble a compiled kernel. It is not loaded: no device is needed."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder, "kernel.cubin")
        cubin.write_bytes(kernel.asm["cubin"])
        resources = _RESOURCES.search(_cuobjdump("-res-usage", cubin))
        sass = _cuobjdump("-sass", cubin)
    assert resources is not None, "cuobjdump reports resources in an unknown form"
    registers, stack_bytes, local_bytes = map(int, resources.groups())
    instructions = Counter(_INSTRUCTION.findall(sass))
    assert instructions, "cuobjdump lists instructions in an unknown form"
    metadata = kernel.metadata
    return Binary(
        name=kernel.src.fn.__name__,
        arch=metadata.target.arch,
        constants={
            parameter.name: kernel.src.constants[parameter.num,]
            for parameter in kernel.src.fn.params
            if parameter.is_constexpr or kernel.src.constants.get((parameter.num,), 0) is None
        },
        num_threads=32 * metadata.num_warps,
        registers=registers,
        stack_bytes=stack_bytes,
        local_bytes=local_bytes,
        shared_bytes=metadata.shared,
        instructions=instructions,
    )


def _cuobjdump(option: str, cubin: Path) -> str:
    """cuobjdump calls nvdisasm, which it looks for on the PATH."""
    path = os.pathsep.join([str(Path(knobs.nvidia.nvdisasm.path).parent), os.environ.get("PATH", "")])
    command = [knobs.nvidia.cuobjdump.path, option, str(cubin)]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "PATH": path}).stdout
