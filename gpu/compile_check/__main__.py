"""The command ``python -m kvtwin.gpu.compile_check``: what was compiled; exit 1 if a kernel must not be so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product

import torch

from kvtwin.gpu.compile_check.binary import Binary
from kvtwin.gpu.compile_check.cases import MODELS, launch_all
from kvtwin.gpu.compile_check.gates import SHARED_MEMORY, examine, programs_per_multiprocessor
from kvtwin.gpu.compile_check.offline_driver import compiling_for
from kvtwin.gpu.compile_check.requirements import requirements
from kvtwin.gpu.kernels.launch_table import launch_constants

DTYPES = ("bfloat16", "float16", "float32")
BLOCK_SIZES = (16, 32, 64)
COLUMNS = ("kernel", "sm", "model", "dtype", "block", "warps", "registers", "shared KiB", "programs per SM", "loads")
COLUMNS += ("multiplies", "spills", "verdict")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print, judge."""
    args = _parser().parse_args(arguments)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    num_binaries = num_failed = 0
    for arch, model, dtype, block_size in product(args.arch, args.model, args.dtype, args.block_size):
        for binary, broken in check(arch, model, getattr(torch, dtype), block_size):
            num_binaries += 1
            num_failed += bool(broken)
            print(f"| {' | '.join(_cells(binary, model, dtype, block_size, broken))} |", flush=True)
    print(f"\n{num_binaries} kernels compiled, {num_failed} not as they must be; none was run")
    return 1 if num_failed else 0


def check(arch: int, model: str, dtype: torch.dtype, block_size: int) -> list[tuple[Binary, list[str]]]:
    """Every kernel that a model needs, compiled for one architecture, and what is wrong with it."""
    shape = MODELS[model]
    constants = launch_constants(arch, dtype, shape.head_dim, shape.num_query_heads, shape.num_kv_heads, block_size)
    with compiling_for(arch) as kernels:
        launch_all(arch, shape, dtype, block_size)
    return examine(kernels, lambda binary: requirements(binary, dtype, constants))


def _cells(binary: Binary, model: str, dtype: str, block_size: int, broken: list[str]) -> list[str]:
    loads = [f"{binary.count('LDGSTS', width_bits=128)} LDGSTS.128"] if binary.count("LDGSTS") else []
    loads += [f"{binary.count('LDG', width_bits=width)} LDG.{width}" for width in binary.widths_bits("LDG")]
    multiplies = [f"{binary.count(name)} {name}" for name in ("HMMA", "HGMMA") if binary.count(name)]
    return [
        binary.name.strip("_").removesuffix("_kernel"),
        str(binary.arch),
        model,
        dtype,
        str(block_size),
        str(binary.num_threads // 32),
        str(binary.registers),
        f"{binary.shared_bytes / 1024:.1f}",
        str(programs_per_multiprocessor(binary)),
        ", ".join(loads),
        ", ".join(multiplies),
        str(binary.spills),
        "; ".join(broken) or "ok",
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kvtwin.gpu.compile_check",
        description="Compile the kernels for GPUs that are not here, and check what came out. Default: everything.",
    )
    parser.add_argument("--arch", type=int, nargs="+", choices=sorted(SHARED_MEMORY), default=[80, 90])
    parser.add_argument("--model", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--block-size", type=int, nargs="+", choices=BLOCK_SIZES, default=BLOCK_SIZES)
    return parser


if __name__ == "__main__":
    sys.exit(main())
