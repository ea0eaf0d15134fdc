"""Whether the host has memory for what is about to be put there."""

from __future__ import annotations

from pathlib import Path

from kvtwin.gpu.errors import OutOfDeviceMemory

_MEMINFO = Path("/proc/meminfo")


def check_host_memory(num_bytes: int, what: str) -> None:
    """OutOfDeviceMemory: the host has not as much available. Linux would not refuse it, but kill the process later."""
    available = _available_bytes()
    if available is not None and num_bytes > available:
        raise OutOfDeviceMemory(f"{what}: {num_bytes:,} bytes are needed, and {available:,} are available on this host")


def _available_bytes() -> int | None:
    """What Linux estimates can be had without swapping; None where it is not known."""
    try:
        lines = _MEMINFO.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
