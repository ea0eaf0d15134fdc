"""What a device cannot do, said in one line for the user."""

from __future__ import annotations


class DeviceError(Exception):
    """Something that was asked for is not possible on this device: model, dtype, size or memory."""


class OutOfDeviceMemory(DeviceError):  # noqa: N818 - named as the field does
    """The device's memory is used up."""


def first_line(error: Exception) -> str:
    """What another library's error says, for an error of ours."""
    return (str(error) or type(error).__name__).splitlines()[0]


def is_out_of_memory(error: Exception) -> bool:
    """Whether it says that memory is used up: Python's, torch's for a GPU, or torch's for a CPU, which is no class."""
    is_cpus = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or is_cpus
