"""Host blocks: memory beside the device that holds copies of the device's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvtwin.engine.executor import HostCopy


class HostLoad(NamedTuple):
    """A position of a request's table whose content lies in the host."""

    group_index: int
    position: int
    host_block: int
    key: int
    """The key under which the device shall cache it again; NO_KEY: none."""


class HostPool:
    """A fixed number of host blocks, and the copies between them and the device that the next step carries.

    A step copies to the host first, then from it. So a host block that is read by the step being decided is handed out
    again only for the steps after it.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a host block is free or has one owner. Ids are positive and
    begin with ``first``, so that two pools can share one range.
    """

    def __init__(self, num_blocks: int, first: int = 1) -> None:
        self.num_blocks = num_blocks
        self.num_saved_blocks = 0
        """Blocks copied from the device, over the run."""
        self.num_loaded_blocks = 0
        """Blocks copied to the device, over the run."""
        self._free = list(range(first + num_blocks - 1, first - 1, -1))
        self._free_after_step: list[int] = []
        self._saves: list[HostCopy] = []
        self._loads: list[HostCopy] = []
        self._read: set[int] = set()
        """Host blocks that the next step reads."""

    def save(self, device_blocks: Sequence[int]) -> list[int] | None:
        """Order copies of what ``device_blocks`` hold before the next step writes; the host blocks they go to.

        None, changing nothing, when there is no room.
        """
        if len(device_blocks) > len(self._free):
            return None
        host_blocks = [self._free.pop() for _ in device_blocks]
        self._saves += map(HostCopy, device_blocks, host_blocks)
        self.num_saved_blocks += len(host_blocks)
        return host_blocks

    def hold(self, host_block: int) -> None:
        """Note that the next step reads ``host_block``: :meth:`load` will say where to."""
        self._read.add(host_block)

    def load(self, host_block: int, device_block: int) -> None:
        """Order a copy of ``host_block`` to ``device_block``, before the next step writes."""
        self._loads.append(HostCopy(device_block, host_block))
        self._read.add(host_block)
        self.num_loaded_blocks += 1

    def is_read(self, host_block: int) -> bool:
        """Whether the next step reads ``host_block``, so that it cannot be written before."""
        return host_block in self._read

    def free(self, host_blocks: Sequence[int]) -> None:
        """Let go of ``host_blocks``."""
        for block in host_blocks:
            (self._free_after_step if block in self._read else self._free).append(block)

    def free_blocks(self) -> list[int]:
        """The host blocks without an owner."""
        return self._free + self._free_after_step

    def take_copies(self) -> tuple[list[HostCopy], list[HostCopy]]:
        """The copies from and to the device that were ordered since the last call; this ends the step."""
        copies = self._saves, self._loads
        self._saves, self._loads = [], []
        self._read.clear()
        self._free += self._free_after_step
        self._free_after_step.clear()
        return copies
