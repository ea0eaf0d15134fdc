"""Between host and device without waiting for either."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_device(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Integers as an int64 tensor on ``device``. The host goes on at once."""
    tensor = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return tensor.to(device, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory, which is complete once the device has done all that it was asked to do so far."""
    if tensor.device.type == "cpu":
        return tensor.clone()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)
