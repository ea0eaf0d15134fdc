"""What becomes of the blocks of a pool, for whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

from kvtwin.engine.block_pool import NULL_BLOCK, BlockPool
from kvtwin.engine.contiguous.range_pool import RangePool


class BlockChange(IntEnum):
    """What can become of a block."""

    TAKEN = 0
    """Handed out from the free queue: what it cached is gone."""
    HIT = 1
    """Held by one more request, which found it in the cache, or by a fork."""
    FREED = 2
    """Held by one request less."""
    CACHED = 3
    """Full, and hit-able from now on."""


def listen(pool: BlockPool | RangePool, note: Callable[[BlockChange, Sequence[int]], None]) -> None:
    """Have ``note`` called whenever something becomes of a block. A pool that nobody listens to is not slowed down."""
    if isinstance(pool, RangePool):
        take, give_back = pool.take, pool.give_back

        def noted_take(count: int) -> int | None:
            start = take(count)
            if start is not None:
                note(BlockChange.TAKEN, range(start, start + count))
            return start

        def noted_give_back(start: int, count: int) -> None:
            give_back(start, count)
            note(BlockChange.FREED, range(start, start + count))

        _replace(pool, take=noted_take, give_back=noted_give_back)
        return
    allocate, touch, free, register = pool.allocate, pool.touch, pool.free, pool.register

    def noted_allocate(count: int) -> list[int]:
        blocks = allocate(count)
        note(BlockChange.TAKEN, blocks)
        return blocks

    def noted_touch(block_ids: Sequence[int]) -> None:
        touch(block_ids)
        note(BlockChange.HIT, _real(block_ids))

    def noted_free(block_ids: Sequence[int]) -> None:
        free(block_ids)
        note(BlockChange.FREED, _real(block_ids))

    def noted_register(block_ids: Sequence[int], keys: Sequence[int]) -> None:
        register(block_ids, keys)
        note(BlockChange.CACHED, block_ids)

    _replace(pool, allocate=noted_allocate, touch=noted_touch, free=noted_free, register=noted_register)


def _real(blocks: Sequence[int]) -> Sequence[int]:
    return [block for block in blocks if block != NULL_BLOCK]


def _replace(pool: BlockPool | RangePool, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(pool, name, method)
