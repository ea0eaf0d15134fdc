"""The block pool: every KV cache block there is, who holds it, and in which order free ones are handed out.

Rules: specification, section 1. Block ids are ints; all state is a few int arrays indexed by block id and one dict.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from kvtwin.engine.pool_listener import PoolListener, TablePart

NULL_BLOCK = 0
"""Block 0 fills table positions that hold nothing. It is never allocated, freed, touched or cached."""

NO_KEY = 0
"""The key of a block that no prompt can hit. Real keys are any other int."""


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
        self.num_usable_blocks = self.num_free_blocks = num_blocks - 1
        self.num_evictions = 0
        """Blocks that lost their key because they were handed out again."""
        self.num_hashed_blocks = 0
        """Blocks that have a key."""
        self.listeners: list[PoolListener] = []
        """Who is told what becomes of blocks. While it is empty, nothing is done for it."""
        self._evictions: list[tuple[int, int]] = []
        """Blocks that :meth:`allocate` evicts, and the keys that they lose, for the listeners."""
        self.ref_counts = array("q", [0]) * num_blocks
        self.keys = array("q", [NO_KEY]) * num_blocks
        # The free queue is a ring through a sentinel, whose index is num_blocks.
        self._next = array("q", (*range(1, num_blocks + 1), 1))
        self._previous = array("q", (num_blocks, num_blocks, *range(1, num_blocks)))
        self._block_of_key: dict[int, int] = {}
        self.find: Callable[[int], int | None] = self._block_of_key.get
        """The block that caches a key, the oldest of several; None if there is none."""
        # Ring of blocks with an equal key; a block alone points to itself.
        self._next_same = array("q", range(num_blocks))
        self._previous_same = array("q", range(num_blocks))

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody holds."""
        return self.num_usable_blocks - self.num_free_blocks

    @property
    def num_cached_keys(self) -> int:
        """Distinct keys that a prompt can hit."""
        return len(self._block_of_key)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks from the front of the free queue, evicting what they cached.

        Raises ValueError, changing nothing, when fewer are free.
        """
        if count > self.num_free_blocks:
            raise ValueError(f"allocate: {count} blocks asked for, {self.num_free_blocks} free")
        successor, keys, ref_counts = self._next, self.keys, self.ref_counts
        sentinel = self.num_blocks
        block_ids, block = [], successor[sentinel]
        for _ in range(count):
            block_ids.append(block)
            ref_counts[block] = 1
            if keys[block] != NO_KEY:
                self._evict(block)
            block = successor[block]
        successor[sentinel] = block
        self._previous[block] = sentinel
        self.num_free_blocks -= count
        if self.listeners:
            self._tell_taken(block_ids)
        return block_ids

    def touch(self, block_ids: Sequence[int]) -> None:
        """Hold ``block_ids`` once more; free ones leave the queue from wherever they stand in it."""
        ref_counts, successor, predecessor = self.ref_counts, self._next, self._previous
        for block in block_ids:
            if block == NULL_BLOCK:
                continue
            if ref_counts[block] == 0:
                after, before = successor[block], predecessor[block]
                successor[before] = after
                predecessor[after] = before
                self.num_free_blocks -= 1
            ref_counts[block] += 1
        for listener in self.listeners:
            listener.touched(block_ids)

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each block, given in the order in which they shall be evicted.

        Raises ValueError, changing nothing, when a block would be freed more often than it is held.
        """
        ref_counts, keys = self.ref_counts, self.keys
        without_key: list[int] = []
        with_key: list[int] = []
        for position, block in enumerate(block_ids):
            if block == NULL_BLOCK:
                continue
            if ref_counts[block] == 0:
                for freed in block_ids[:position]:
                    if freed != NULL_BLOCK:
                        ref_counts[freed] += 1
                raise ValueError(f"free: block {block} is not held (freed twice?)")
            ref_counts[block] -= 1
            if ref_counts[block] == 0:
                (without_key if keys[block] == NO_KEY else with_key).append(block)
        self._insert_after(self.num_blocks, without_key)
        self._insert_after(self._previous[self.num_blocks], with_key)
        self.num_free_blocks += len(without_key) + len(with_key)
        for listener in self.listeners:
            listener.freed(block_ids)

    def blocks_with_key(self, key: int) -> list[int]:
        """All blocks that cache ``key``, oldest registration first."""
        first = self._block_of_key.get(key)
        if first is None:
            return []
        blocks = [first]
        while (block := self._next_same[blocks[-1]]) != first:
            blocks.append(block)
        return blocks

    def register(self, block_ids: Sequence[int], keys: Sequence[int], part: TablePart | None = None) -> None:
        """Give held blocks that have no key yet their ``keys``, so that prompts can hit them.

        ``part`` tells the listeners where in whose table they stand.
        """
        block_of_key, own_keys = self._block_of_key, self.keys
        for block, key in zip(block_ids, keys, strict=True):
            own_keys[block] = key
            oldest = block_of_key.setdefault(key, block)
            if oldest != block:
                newest = self._previous_same[oldest]
                self._next_same[newest] = block
                self._previous_same[block] = newest
                self._next_same[block] = oldest
                self._previous_same[oldest] = block
        self.num_hashed_blocks += len(block_ids)
        for listener in self.listeners:
            listener.registered(block_ids, keys, part)

    def reset(self) -> bool:
        """Forget every key if nothing is held, keeping the order of the queue; else change nothing.

        Returns whether it was done.
        """
        if self.num_used_blocks:
            return False
        self.keys = array("q", [NO_KEY]) * self.num_blocks
        self._next_same = array("q", range(self.num_blocks))
        self._previous_same = array("q", range(self.num_blocks))
        self._block_of_key.clear()
        self.num_hashed_blocks = 0
        for listener in self.listeners:
            listener.cleared()
        return True

    def free_queue(self) -> list[int]:
        """Ids of the free blocks, the one handed out next first."""
        queue = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks:
            queue.append(block)
            block = self._next[block]
        return queue

    def _evict(self, block: int) -> None:
        key = self.keys[block]
        self.keys[block] = NO_KEY
        self.num_evictions += 1
        self.num_hashed_blocks -= 1
        if self.listeners:
            self._evictions.append((block, key))
        successor = self._next_same[block]
        if successor == block:
            del self._block_of_key[key]
            return
        predecessor = self._previous_same[block]
        self._next_same[predecessor] = successor
        self._previous_same[successor] = predecessor
        self._next_same[block] = self._previous_same[block] = block
        if self._block_of_key[key] == block:
            self._block_of_key[key] = successor

    def _tell_taken(self, block_ids: Sequence[int]) -> None:
        evictions, self._evictions = self._evictions, []
        for block, key in evictions:
            for listener in self.listeners:
                listener.evicted(block, key)
        for listener in self.listeners:
            listener.taken(block_ids)

    def _insert_after(self, block: int, block_ids: Sequence[int]) -> None:
        """Put ``block_ids``, keeping their order, behind ``block`` (or the sentinel) in the free queue."""
        if not block_ids:
            return
        successor, predecessor = self._next, self._previous
        end = successor[block]
        for inserted in block_ids:
            successor[block] = inserted
            predecessor[inserted] = block
            block = inserted
        successor[block] = end
        predecessor[end] = block
