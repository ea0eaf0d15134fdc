"""The block pool: every KV cache block there is, who holds it, and in which order free ones are handed out.

Rules: specification, section 1. What is done to the blocks is in :mod:`kvtwin.engine.compiled.pool_functions`, for few
blocks interpreted, for many as machine code, over the same memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence

from kvtwin.engine.compiled import pool_functions
from kvtwin.engine.compiled.arrays import NUM_EVICTIONS, NUM_FREE, NUM_HASHED, NUM_KEYS, PoolArrays
from kvtwin.engine.compiled.entry_points import table_of
from kvtwin.engine.compiled.key_table import find, table_length
from kvtwin.engine.compiled.machine_code import MachineCode, machine_code
from kvtwin.engine.compiled.pool_functions import DONE, NO_KEY, NULL_BLOCK
from kvtwin.engine.pool_listener import PoolListener, TablePart

__all__ = ["NO_KEY", "NULL_BLOCK", "BlockPool", "KeyMap"]

MANY_BLOCKS = 24
"""From so many on, calling machine code is faster than interpreting."""


class BlockPool:
    """A fixed number of blocks with reference counts, a free queue and a map from key to block.

    Invariants (checked by :mod:`kvtwin.engine.invariants`):

    * A block is in the free queue exactly when its reference count is 0; the null block never is.
    * A block with a key is in the map under that key, whether it is free or held: a freed block keeps its key
      and stays hit-able until :meth:`allocate` hands it out, and that is the eviction.
    * Blocks with equal keys are never merged. They form a ring in order of registration, and the map holds the
      oldest of them.
    * The front of the queue is handed out next. Freed blocks without a key go to the front, so that they are
      reused before anything cached is evicted; freed blocks with a key go to the back.

    ``num_blocks`` counts the null block.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks: expected at least 2 (one is the null block), got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_usable_blocks = num_blocks - 1
        self.listeners: list[PoolListener] = []
        """Who is told what becomes of blocks. While it is empty, nothing is done for it."""
        self.ref_counts = array("q", [0]) * num_blocks
        self.keys = array("q", [NO_KEY]) * num_blocks
        self.arrays = PoolArrays(
            counts=array("q", [self.num_usable_blocks, 0, 0, 0]),
            ref_counts=self.ref_counts,
            keys=self.keys,
            next=array("q", (*range(1, num_blocks + 1), 1)),
            previous=array("q", (num_blocks, num_blocks, *range(1, num_blocks))),
            next_same=array("q", range(num_blocks)),
            previous_same=array("q", range(num_blocks)),
            table=array("q", [NULL_BLOCK]) * table_length(num_blocks),
        )
        """The memory of all of this, which nobody else changes but through the functions."""
        self.find: Callable[[int], int | None] = KeyMap(self.arrays)
        self._blocks = array("q", [0]) * num_blocks
        self._lost_keys = array("q", [0]) * num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        free: int = self.arrays.counts[NUM_FREE]
        return free

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_usable_blocks - self.num_free_blocks

    @property
    def num_evictions(self) -> int:
        """Blocks that lost their key because they were handed out again."""
        evictions: int = self.arrays.counts[NUM_EVICTIONS]
        return evictions

    @num_evictions.setter
    def num_evictions(self, number: int) -> None:
        self.arrays.counts[NUM_EVICTIONS] = number

    @property
    def num_hashed_blocks(self) -> int:
        """Blocks that have a key."""
        hashed: int = self.arrays.counts[NUM_HASHED]
        return hashed

    @property
    def num_cached_keys(self) -> int:
        """Distinct keys that a prompt can hit."""
        keys: int = self.arrays.counts[NUM_KEYS]
        return keys

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks from the front of the free queue, evicting what they cached.

        Raises ValueError, changing nothing, when fewer are free.
        """
        if count > self.num_free_blocks:
            raise ValueError(f"allocate: {count} blocks asked for, {self.num_free_blocks} free")
        blocks, lost_keys = self._blocks, self._lost_keys
        if code := _code_for(count):
            table = table_of(self.arrays)
            code.allocate(_address(table), count, _address(blocks), _address(lost_keys))
        else:
            pool_functions.allocate(self.arrays, count, blocks, 0, lost_keys)
        block_ids = blocks[:count].tolist()
        if self.listeners:
            self._tell_taken(block_ids)
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Hold ``block_ids`` once more; free ones leave the queue from wherever they stand in it."""
        if code := _code_for(len(block_ids)):
            blocks = array("q", block_ids)
            table = table_of(self.arrays)
            code.touch(_address(table), *blocks.buffer_info())
        else:
            pool_functions.touch(self.arrays, block_ids, 0, len(block_ids))
        for listener in self.listeners:
            listener.touched(block_ids)

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each block, given in the order in which they shall be evicted.

        Raises ValueError, changing nothing, when a block would be freed more often than it is held.
        """
        if code := _code_for(len(block_ids)):
            blocks = array("q", block_ids)
            table = table_of(self.arrays)
            not_held = code.free(_address(table), *blocks.buffer_info())
        else:
            not_held = pool_functions.free(self.arrays, block_ids, 0, len(block_ids), 1)
        if not_held != DONE:
            raise ValueError(f"free: block {not_held} is not held (freed twice?)")
        for listener in self.listeners:
            listener.freed(block_ids)

    def blocks_with_key(self, key: int) -> list[int]:
        """All blocks that cache ``key``, oldest registration first."""
        first = self.find(key)
        if first is None:
            return []
        blocks = [first]
        while (block := self.arrays.next_same[blocks[-1]]) != first:
            blocks.append(block)
        return blocks

    def register(self, block_ids: Sequence[int], keys: Sequence[int], part: TablePart | None = None) -> None:
        """Give held blocks that have no key yet their ``keys``, so that prompts can hit them.

        ``part`` tells the listeners where in whose table they stand.
        """
        count = len(block_ids)
        if count != len(keys):
            raise ValueError(f"register: {count} blocks and {len(keys)} keys")
        if code := _code_for(count):
            blocks, named = array("q", block_ids), array("q", keys)
            table = table_of(self.arrays)
            code.register(_address(table), _address(blocks), _address(named), count)
        else:
            pool_functions.register(self.arrays, block_ids, keys, 0, count)
        for listener in self.listeners:
            listener.registered(block_ids, keys, part)

    def drop_keys(self, block_ids: Iterable[int]) -> None:
        """Take the keys from held blocks that have one: what they hold is worth nothing."""
        for block in block_ids:
            if (key := self.keys[block]) == NO_KEY:
                continue
            pool_functions.evict(self.arrays, block)
            self.num_evictions -= 1  # nobody took it
            for listener in self.listeners:
                listener.lost_key(block, key)

    def reset(self) -> bool:
        """Forget every key if nothing is held, keeping the order of the queue; else change nothing.

        Returns whether it was done.
        """
        if self.num_used_blocks:
            return False
        arrays = self.arrays
        for block in range(self.num_blocks):
            arrays.keys[block] = NO_KEY
            arrays.next_same[block] = arrays.previous_same[block] = block
        for place in range(len(arrays.table)):
            arrays.table[place] = NULL_BLOCK
        arrays.counts[NUM_HASHED] = arrays.counts[NUM_KEYS] = 0
        for listener in self.listeners:
            listener.cleared()
        return True

    def free_queue(self) -> list[int]:
        """Ids of the free blocks, the one handed out next first."""
        queue = []
        block = self.arrays.next[self.num_blocks]
        while block != self.num_blocks:
            queue.append(block)
            block = self.arrays.next[block]
        return queue

    def _tell_taken(self, block_ids: Sequence[int]) -> None:
        for block, key in zip(block_ids, self._lost_keys, strict=False):
            if key != NO_KEY:
                for listener in self.listeners:
                    listener.evicted(block, key)
        for listener in self.listeners:
            listener.taken(block_ids)


class KeyMap:
    """The block that caches a key, the oldest of several; None if there is none."""

    def __init__(self, pool: PoolArrays) -> None:
        self._pool = pool
        self._table = self._found = array("q")
        """What machine code is told of the pool, whose arrays never grow, and where it writes blocks."""

    def __reduce__(self) -> tuple[type[KeyMap], tuple[PoolArrays]]:
        return KeyMap, (self._pool,)  # a copy's arrays lie elsewhere

    def __call__(self, key: int) -> int | None:
        return find(self._pool, key) or None

    def leading(self, keys: Sequence[int], end: int) -> list[int]:
        """Blocks of the first ``end`` keys, up to the first that has none."""
        end = min(end, len(keys))
        if end <= 0 or not find(self._pool, keys[0]):
            return []
        if code := _code_for(end):
            found = array("q", keys[:end])
            table = table_of(self._pool)
            number = code.find_leading(_address(table), _address(found), end, _address(found))
        else:
            found = array("q", bytes(8 * end))
            number = pool_functions.find_leading(self._pool, keys, 0, end, found)
        return found[:number].tolist()

    def num_leading(self, keys: array[int], end: int) -> int:
        """How many of the first ``end`` keys are cached, up to the first that is not."""
        if code := _code_for(end):
            if not self._table:
                self._table, self._found = table_of(self._pool), array("q")
            if len(self._found) < end:
                self._found = array("q", bytes(8 * 2 * end))
            return code.find_leading(_address(self._table), _address(keys), end, _address(self._found))
        return next((position for position in range(end) if not find(self._pool, keys[position])), end)

    def all(self, keys: Sequence[int]) -> list[int | None]:
        """The block of each key."""
        count = len(keys)
        if not (code := _code_for(count)):
            return [self(key) for key in keys]
        found = array("q", keys)
        table = table_of(self._pool)
        code.find_all(_address(table), _address(found), count, _address(found))
        return [block or None for block in found]


def _code_for(num_blocks: int) -> MachineCode | None:
    """Machine code, if there is any and calling it for ``num_blocks`` is worth its while."""
    return machine_code() if num_blocks >= MANY_BLOCKS else None


def _address(numbers: array[int]) -> int:
    """Where ``numbers`` lie, which must outlive the call that is told."""
    return numbers.buffer_info()[0]
