"""Layer operations by Triton kernels, one launch each."""

from __future__ import annotations

from torch import Tensor

from kvtwin.gpu.kernels.gate import gate
from kvtwin.gpu.kernels.norm import add_and_norm, norm
from kvtwin.gpu.kernels.rope import rotate
from kvtwin.gpu.layer_ops import LayerOps, Rotation


class TritonLayerOps(LayerOps):
    """Can be captured in a CUDA graph: no call waits for the device."""

    def norm(self, values: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """See :class:`~kvtwin.gpu.layer_ops.LayerOps`."""
        return norm(values, weight, epsilon)

    def add_and_norm(self, hidden: Tensor, update: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """See :class:`~kvtwin.gpu.layer_ops.LayerOps`."""
        return add_and_norm(hidden, update, weight, epsilon)

    def rotate(self, heads: Tensor, rotation: Rotation) -> Tensor:
        """See :class:`~kvtwin.gpu.layer_ops.LayerOps`."""
        return rotate(heads, rotation.cosine, rotation.sine)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See :class:`~kvtwin.gpu.layer_ops.LayerOps`."""
        return gate(gate_up)
