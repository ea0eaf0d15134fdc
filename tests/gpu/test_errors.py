"""Memory that is used up is told in one way, whoever says so."""

import pytest
import torch

from kvtwin.gpu.errors import OutOfDeviceMemory, memory_for


def allocate_too_much():
    torch.empty(2**60, dtype=torch.uint8)


def raising(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (allocate_too_much, "can't allocate memory"),
        (raising(MemoryError()), "^a step: MemoryError$"),
        (raising(torch.OutOfMemoryError("more than there is\nsecond line")), "^a step: more than there is$"),
        (raising(RuntimeError("CUDA error: out of memory\nhelp")), "^a step: CUDA error: out of memory$"),
        (raising(RuntimeError("Triton Error [CUDA]: out of memory")), "^a step: Triton"),
        (raising(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")), "^a step: CUDA"),
    ],
)
def test_no_memory(function, words):
    with pytest.raises(OutOfDeviceMemory, match=words), memory_for("a step"):
        function()


def test_other_errors_are_bugs():
    with pytest.raises(RuntimeError, match="an illegal memory access"), memory_for("a step"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
