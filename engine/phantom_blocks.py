"""Phantom blocks: they have a key, and the step that was to fill them did not run (vllm#43569)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtwin.engine.block_pool import NO_KEY, BlockPool
from kvtwin.engine.pool_listener import PoolListener


class PhantomBlocks(PoolListener):
    """Blocks with a key whose content was never computed. It listens from the first one on.

    Invariant (checked by :mod:`kvtwin.engine.invariants`): all of them have a key.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.blocks: set[int] = set()
        self._pool = pool

    def mark(self, blocks: Iterable[int]) -> None:
        """Those of ``blocks`` that have a key will stay empty."""
        self.blocks.update(block for block in blocks if self._pool.keys[block] != NO_KEY)
        if self not in self._pool.listeners:
            self._pool.listeners.append(self)

    def find_filled(self, key: int) -> int | None:
        """The oldest block with ``key`` that was filled."""
        return next((block for block in self._pool.blocks_with_key(key) if block not in self.blocks), None)

    def taken(self, blocks: Sequence[int]) -> None:
        self.blocks.difference_update(blocks)

    def lost_key(self, block: int, key: int) -> None:
        if self._pool.keys[block] == NO_KEY:
            self.blocks.discard(block)

    def cleared(self) -> None:
        self.blocks.clear()
