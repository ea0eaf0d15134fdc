"""Paged attention by Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from kvtwin.gpu.attention import Attention, AttentionBatch, LayerCache
from kvtwin.gpu.kernels.copy import copy_blocks
from kvtwin.gpu.kernels.decode import decode
from kvtwin.gpu.kernels.launch_table import launch_constants
from kvtwin.gpu.kernels.prefill import prefill
from kvtwin.gpu.kernels.write import write_kv


class TritonAttention(Attention):
    """Sequences with one query are decoded, the others prefilled; keys and values of a layer have equal strides.

    No call waits for the device or asks it anything, so that all of them can be captured in a CUDA graph.
    """

    def __init__(self, arch: int) -> None:
        """``arch``: compute capability times 10, for instance 90 (:func:`arch_of`)."""
        self._arch = arch

    def write(self, keys: Tensor, values: Tensor, layer: LayerCache, slots: Tensor) -> None:
        """See :class:`~kvtwin.gpu.attention.Attention`."""
        write_kv(keys, values, layer.keys, layer.values, slots)

    def attend(self, query: Tensor, layer: LayerCache, batch: AttentionBatch) -> Tensor:
        """See :class:`kvtwin.gpu.attention.Attention`. DeviceError: a shape that the kernels do not support."""
        block_size, num_kv_heads, head_dim = layer.keys.shape[1:]
        constants = launch_constants(self._arch, query.dtype, head_dim, query.shape[1], num_kv_heads, block_size)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        decodes = batch.num_decodes
        if decodes:
            decode(
                query[:decodes],
                layer.keys,
                layer.values,
                batch.block_tables[:decodes],
                batch.context_tokens[:decodes],
                output[:decodes],
                batch.max_context_tokens,
                constants,
            )
        if decodes < len(batch.context_tokens):
            prefill(
                query,
                layer.keys,
                layer.values,
                batch.block_tables[decodes:],
                batch.query_starts[decodes:],
                batch.context_tokens[decodes:],
                output,
                decodes,
                constants,
            )
        return output

    def copy_blocks(self, storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """See :class:`~kvtwin.gpu.attention.Attention`."""
        copy_blocks(storage, sources, destinations)


def arch_of(device: torch.device) -> int:
    """Compute capability of a CUDA device, times 10."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
