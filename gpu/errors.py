"""What a device cannot do, said in one line for the user."""

from __future__ import annotations


class DeviceError(Exception):
    """Something that was asked for is not possible on this device: model, dtype, size or memory."""


class OutOfDeviceMemory(DeviceError):  # noqa: N818 - named as the field does
    """The device's memory is used up."""


def first_line(error: Exception) -> str:
    """What another library's error says, for an error of ours."""
    return (str(error) or type(error).__name__).splitlines()[0]
