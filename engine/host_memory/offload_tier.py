"""The offload tier: a second prefix cache, in the host, of blocks that the device evicted.

A block is copied when the device hands it out again and no other filled block has its key. It stays in the host, also
after it was loaded, until it is the least recently used. (vLLM's native backend copies blocks as soon as they are
computed; see docs/host-memory.md.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_groups import FindBlock
from kvtwin.engine.host_memory.host_pool import HostLoad, HostPool
from kvtwin.engine.phantom_blocks import PhantomBlocks
from kvtwin.engine.pool_listener import PoolListener
from kvtwin.engine.request import BlockTables


class OffloadTier(PoolListener):
    """Host blocks by key, the least recently used first.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): every host block is free or cached under one key.
    """

    def __init__(self, num_blocks: int, phantoms: PhantomBlocks, first: int = 1) -> None:
        self.pool = HostPool(num_blocks, first)
        self._phantoms = phantoms
        self._host_block_of_key: OrderedDict[int, int] = OrderedDict()

    def evicted(self, block: int, key: int) -> None:
        if block not in self._phantoms.blocks and self._phantoms.find_filled(key) is None:
            self.store(key, block)

    def cleared(self) -> None:
        self.pool.free(list(self._host_block_of_key.values()))
        self._host_block_of_key.clear()

    def store(self, key: int, device_block: int) -> None:
        """Cache ``device_block``, which loses its ``key`` in the step being decided."""
        blocks = self._host_block_of_key
        if key in blocks:
            blocks.move_to_end(key)
            return
        saved = self.pool.save([device_block])
        if saved is None:
            oldest = next(iter(blocks))
            if self.pool.is_read(blocks[oldest]):  # then the others were used in this step too
                return
            self.pool.free([blocks.pop(oldest)])
            saved = self.pool.save([device_block])
            assert saved is not None
        blocks[key] = saved[0]

    def second_chance(self, find: FindBlock) -> FindBlock:
        """A lookup that asks ``find`` first and then the host; host blocks are negative."""
        in_host = self._host_block_of_key.get

        def find_in_both(key: int) -> int | None:
            block = find(key)
            if block is None and (host_block := in_host(key)) is not None:
                return -host_block
            return block

        return find_in_both

    def take_loads(self, tables: BlockTables, keys: Sequence[Sequence[int]]) -> list[HostLoad]:
        """The positions of ``tables`` that are host blocks; they become null blocks."""
        loads = []
        for index, table in enumerate(tables):
            for position, block in enumerate(table):
                if block < 0:
                    loads.append(HostLoad(index, position, -block, keys[index][position]))
                    table[position] = NULL_BLOCK
        return loads

    def hold(self, loads: Sequence[HostLoad]) -> None:
        """Keep what ``loads`` will read, whatever is stored before :meth:`load`."""
        for place in loads:
            self.pool.hold(place.host_block)
            self._host_block_of_key.move_to_end(place.key)

    def load(self, loads: Sequence[HostLoad], device_blocks: Sequence[int]) -> None:
        """Copy ``loads`` to ``device_blocks``."""
        for place, block in zip(loads, device_blocks, strict=True):
            self.pool.load(place.host_block, block)

    def cached_blocks(self) -> Iterable[int]:
        """The host blocks that cache something, the least recently used first."""
        return self._host_block_of_key.values()
