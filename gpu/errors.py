"""What a device cannot do, said in one line for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_NO_MEMORY = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""What messages of RuntimeError hold: of CUDA and Triton, of torch on a CPU, of cuBLAS."""


class DeviceError(Exception):
    """Something that was asked for is not possible on this device: model, dtype, size or memory."""


class OutOfDeviceMemory(DeviceError):  # noqa: N818 - named as the field does
    """The device's memory is used up."""


def first_line(error: Exception) -> str:
    """What another library's error says, for an error of ours."""
    return (str(error) or type(error).__name__).splitlines()[0]


@contextmanager
def memory_for(what: str) -> Iterator[None]:
    """Raises OutOfDeviceMemory, in a line that begins with ``what``, where memory is used up: Python, torch, CUDA and
    Triton say so in ways of their own."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
        if not is_named and not any(words in str(error) for words in _NO_MEMORY):
            raise
        raise OutOfDeviceMemory(f"{what}: {first_line(error)}") from None
