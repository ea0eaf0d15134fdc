"""What a decoder layer does between its matrix products and its attention: row by row, bound by memory alone.

On a GPU each of these is one fused kernel (``kvtwin.gpu.triton_layer_ops``); here they are plain torch. Everything is
computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


class Rotation(NamedTuple):
    """How far rope turns each token: cosine and sine of its angles, ``[T, head_dim / 2]`` each, float32."""

    cosine: Tensor
    sine: Tensor


class LayerOps(Protocol):
    """A backend. Results are new tensors; what goes in is only read. Strides are free but for the last dimension."""

    def norm(self, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMS norm over the last dimension, scaled by ``weight``: of rows ``[T, N]`` or of heads ``[T, heads, N]``."""

    def add_and_norm(self, hidden: Tensor, update: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """``hidden + update``, ``[T, N]`` each, and the RMS norm of the sum."""

    def rotate(self, heads: Tensor, rotation: Rotation) -> Tensor:
        """Rope of ``[T, heads, head_dim]``: value i of a head's first half is paired with value i of the second."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """SwiGLU: ``silu(gate) * up`` of gate and up side by side, ``[T, 2 N]``; the result is ``[T, N]``."""


class TorchLayerOps(LayerOps):
    """The reference, and what runs on a CPU."""

    def norm(self, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See :class:`LayerOps`."""
        return F.rms_norm(values.float(), weight.shape, weight.float(), epsilon).to(values.dtype)

    def add_and_norm(self, hidden: Tensor, update: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """See :class:`LayerOps`."""
        total = hidden + update
        return total, self.norm(total, weight, epsilon)

    def rotate(self, heads: Tensor, rotation: Rotation) -> Tensor:
        """See :class:`LayerOps`."""
        cosine, sine = rotation.cosine[:, None, :], rotation.sine[:, None, :]
        first, second = heads.float().chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(heads.dtype)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See :class:`LayerOps`."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (F.silu(gate) * up).to(gate_up.dtype)
