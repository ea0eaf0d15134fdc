"""Compile what the phases of ``gpu/check.sh`` launch, on all cores, while the first ones measure.

Triton keeps what it compiled on disk. No GPU is used here: kernels are compiled as in ``python -m
kvtwin.gpu.compile_check``.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from kvtwin.gpu.compile_check.cases import MODELS, launch_all
from kvtwin.gpu.compile_check.offline_driver import compiling_for
from kvtwin.gpu.triton_attention import TritonAttention, arch_of
from kvtwin.gpu.triton_layer_ops import TritonLayerOps
from tests.gpu.layer_op_cases import CHECKS
from tests.gpu.on_device import FIRST_CASES, layer_op_excess
from tests.gpu.paged_cases import step_of

Job = tuple[str, int | str]
JOBS: list[Job] = [
    *(("model", name) for name in ("llama-3.1-8b", "llama-3.2-1b")),
    *(("case", index) for index in range(len(FIRST_CASES))),
    *(("layer operation", index) for index in range(len(CHECKS))),
]


def main() -> None:
    """For the GPU that is here, or the architecture that is named on the command line."""
    arch = int(sys.argv[1]) if len(sys.argv) > 1 else arch_of(torch.device("cuda"))
    workers = max(1, (os.cpu_count() or 1) - 2)
    with ProcessPoolExecutor(min(workers, len(JOBS)), mp_context=multiprocessing.get_context("spawn")) as pool:
        numbers = [each.result() for each in as_completed([pool.submit(compile_job, arch, job) for job in JOBS])]
    print(f"{sum(numbers)} kernels compiled for sm_{arch}")


def compile_job(arch: int, job: Job) -> int:
    """How many kernels it has."""
    torch.set_num_threads(1)
    kind, which = job
    with compiling_for(arch) as kernels:
        if kind == "model":
            launch_all(arch, MODELS[str(which)], torch.bfloat16, 16)
        elif kind == "case":
            step_of(FIRST_CASES[int(which)]).run(TritonAttention(arch))
        else:
            check, shape = CHECKS[int(which)]
            for dtype in (torch.bfloat16, torch.float32):
                layer_op_excess(check, TritonLayerOps(), dtype, shape)  # whose result is not computed
    return len({kernel.hash for kernel in kernels})


if __name__ == "__main__":
    main()
