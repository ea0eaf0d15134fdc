"""The paged KV cache as tensors: blocks of all layers on the device, and host blocks to copy them to."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvtwin.engine.executor import BlockCopy, HostCopy
from kvtwin.gpu.attention import Attention, LayerCache
from kvtwin.gpu.errors import DeviceError, first_line
from kvtwin.gpu.host_memory import check_host_memory
from kvtwin.gpu.transfer import to_device


class PagedCache:
    """Keys and values of ``num_blocks`` blocks in every layer, in one allocation.

    A block id means the same block in all layers. Block 0 belongs to nobody: sequences that only fill up a batch read
    it, so it is always finite. Who may use which block is the engine's business; nothing here knows.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        num_host_blocks: int = 0,
    ) -> None:
        """Raises DeviceError when the memory is not there."""
        self.block_size = block_size
        shape = (num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim)
        block_bytes = dtype.itemsize * num_layers * 2 * block_size * num_kv_heads * head_dim
        failure = (
            f"no memory for {num_blocks:,} blocks on {device} and {num_host_blocks:,} on the host, "
            f"of {block_bytes:,} bytes each"
        )
        if device.type == "cpu":
            host_bytes = (num_blocks + num_host_blocks) * block_bytes
        else:
            host_bytes = num_host_blocks * block_bytes
            if host_bytes:
                host_bytes = 1 << (host_bytes - 1).bit_length()  # torch pins powers of two
        check_host_memory(host_bytes, failure)
        try:
            self._storage = torch.zeros(shape, dtype=dtype, device=device)
            self._host = torch.empty(
                (num_host_blocks, num_layers, 2, block_size, num_kv_heads, head_dim),
                dtype=dtype,
                pin_memory=device.type == "cuda" and num_host_blocks > 0,
            )
        except RuntimeError as error:
            raise DeviceError(f"{failure}: {first_line(error)}") from None
        self._planes = self._storage.flatten(0, 1)
        """``[2 * num_layers, num_blocks, ...]``: what a block consists of."""

    @property
    def device(self) -> torch.device:
        """Where the blocks are."""
        return self._storage.device

    @property
    def num_blocks(self) -> int:
        """Blocks on the device, block 0 included."""
        return self._storage.shape[2]

    def layer(self, index: int) -> LayerCache:
        """The blocks of one layer."""
        return LayerCache(self._storage[index, 0], self._storage[index, 1])

    def copy(self, copies: Sequence[BlockCopy], attention: Attention) -> None:
        """Copy blocks within the device, in order."""
        for round_ in _independent_rounds(copies):
            pairs = [[copy.source for copy in round_], [copy.destination for copy in round_]]
            attention.copy_blocks(self._planes, *to_device(pairs, self.device))

    def save(self, copies: Sequence[HostCopy]) -> None:
        """Copy device blocks to the host, whose blocks count from 1."""
        for device_block, host_block in copies:
            self._host[host_block - 1].copy_(self._storage[:, :, device_block], non_blocking=True)

    def load(self, copies: Sequence[HostCopy]) -> None:
        """Copy host blocks to the device."""
        for device_block, host_block in copies:
            self._storage[:, :, device_block].copy_(self._host[host_block - 1], non_blocking=True)

    def poison(self, blocks: Sequence[int]) -> None:
        """Fill blocks with NaN, so that whoever reads what nobody wrote is found out."""
        if blocks:
            self._planes[:, to_device(blocks, self.device)] = torch.nan


def _independent_rounds(copies: Sequence[BlockCopy]) -> list[list[BlockCopy]]:
    """``copies``, cut so that within a round no block is written that another copy of it reads or writes."""
    rounds: list[list[BlockCopy]] = []
    read: set[int] = set()
    written: set[int] = set()
    for copy in copies:
        if not rounds or copy.source in written or copy.destination in read | written:
            rounds.append([])
            read, written = set(), set()
        rounds[-1].append(copy)
        read.add(copy.source)
        written.add(copy.destination)
    return rounds
