"""Triton without a device: launches compile for a chosen architecture and run nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import Benchmarker, DriverBase
from triton.backends.nvidia.driver import ty_to_cpp
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class OfflineDriver(DriverBase):
    """Answers for a GPU of compute capability ``arch`` / 10 that is not here.

    The device's number is the architecture: Triton keeps what it compiled per device.
    """

    def __init__(self, arch: int) -> None:
        super().__init__()
        self._arch = arch

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        return str(ty_to_cpp(ty))

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._arch, 32)

    def get_current_device(self) -> int:
        return self._arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Benchmarker:
        raise NotImplementedError("nothing runs here, so nothing can be timed")


@contextmanager
def compiling_for(arch: int) -> Iterator[list[CompiledKernel]]:
    """Within it a launch of any kernel, with tensors on the CPU, only compiles; the list collects what was launched.

    The project's own launchers decide all that the compiler may know of the arguments (alignment, constants, values of
    1), as they do on a device.
    """
    launched: list[CompiledKernel] = []
    before, run = driver._active, JITFunction.run  # driver.active would look for a device

    def compile_only(self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> CompiledKernel:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        launched.append(kernel)
        return kernel

    driver.set_active(OfflineDriver(arch))
    JITFunction.run = compile_only
    try:
        yield launched
    finally:
        JITFunction.run = run
        driver._active = before
