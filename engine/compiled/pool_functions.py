"""What a block pool does, over int arrays: the one source for the plain scheduler, the compiled loop and the executor.

Rules: specification, section 1. :class:`kvtwin.engine.block_pool.BlockPool` says what must hold, and wraps these
functions for Python.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.compiled.arrays import NUM_EVICTIONS, NUM_FREE, NUM_HASHED, NUM_KEYS, Ints, PoolArrays
from kvtwin.engine.compiled.key_table import clear_place, find, place_of
from kvtwin.engine.compiled.marks import compilable

NULL_BLOCK = 0
"""Block 0 fills table positions that hold nothing. It is never allocated, freed, touched or cached."""

NO_KEY = 0
"""The key of a block that no prompt can hit. Real keys are any other int."""

DONE = -1


@compilable
def allocate(pool: PoolArrays, count: int, blocks: Ints, start: int, lost_keys: Ints) -> None:
    """Take ``count`` blocks, no more than are free, from the front of the free queue, evicting what they cached.

    They are written into ``blocks`` from ``start`` on, and the keys that they lose into ``lost_keys`` from 0 on.
    """
    successor, keys, ref_counts = pool.next, pool.keys, pool.ref_counts
    sentinel = len(keys)
    block = successor[sentinel]
    for index in range(count):
        blocks[start + index] = block
        ref_counts[block] = 1
        key = keys[block]
        lost_keys[index] = key
        if key != NO_KEY:
            evict(pool, block)
        block = successor[block]
    successor[sentinel] = block
    pool.previous[block] = sentinel
    pool.counts[NUM_FREE] -= count


@compilable
def evict(pool: PoolArrays, block: int) -> None:
    """Take its key from a block that has one; of equal blocks the next oldest is found from now on."""
    key = pool.keys[block]
    place = place_of(pool, key)
    successor = pool.next_same[block]
    if successor == block:
        clear_place(pool, place)
        pool.counts[NUM_KEYS] -= 1
    else:
        predecessor = pool.previous_same[block]
        pool.next_same[predecessor] = successor
        pool.previous_same[successor] = predecessor
        pool.next_same[block] = block
        pool.previous_same[block] = block
        if pool.table[place] == block:
            pool.table[place] = successor
    pool.keys[block] = NO_KEY
    pool.counts[NUM_EVICTIONS] += 1
    pool.counts[NUM_HASHED] -= 1


@compilable
def touch(pool: PoolArrays, blocks: Sequence[int], start: int, end: int) -> None:
    """Hold ``blocks`` from ``start`` to ``end`` once more; free ones leave the queue from wherever they stand in it."""
    ref_counts, successor, predecessor = pool.ref_counts, pool.next, pool.previous
    num_taken = 0
    for index in range(start, end):
        block = blocks[index]
        if block == NULL_BLOCK:
            continue
        if ref_counts[block] == 0:
            after, before = successor[block], predecessor[block]
            successor[before] = after
            predecessor[after] = before
            num_taken += 1
        ref_counts[block] += 1
    pool.counts[NUM_FREE] -= num_taken


@compilable
def free(pool: PoolArrays, blocks: Sequence[int], start: int, end: int, stride: int) -> int:
    """Drop one reference of each block of ``blocks[start:end:stride]``, the one to be evicted first at the start.

    Blocks without a key go to the front of the queue, others to its back. Returns ``DONE``, or the first block that is
    not held: then nothing has changed. ``stride`` is 1 or -1.
    """
    ref_counts, keys, successor, predecessor = pool.ref_counts, pool.keys, pool.next, pool.previous
    sentinel = len(keys)
    front = sentinel
    num_freed = 0
    for index in range(start, end, stride):
        block = blocks[index]
        if block == NULL_BLOCK:
            continue
        if ref_counts[block] == 0:
            pool.counts[NUM_FREE] += num_freed
            if stride > 0:
                touch(pool, blocks, start, index)
            else:
                touch(pool, blocks, index + 1, start + 1)
            return block
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            before = front if keys[block] == NO_KEY else predecessor[sentinel]
            after = successor[before]
            successor[before] = block
            predecessor[block] = before
            successor[block] = after
            predecessor[after] = block
            if keys[block] == NO_KEY:
                front = block
            num_freed += 1
    pool.counts[NUM_FREE] += num_freed
    return DONE


@compilable
def register(pool: PoolArrays, blocks: Sequence[int], keys: Sequence[int], start: int, end: int) -> None:
    """Give held blocks that have no key yet, ``blocks`` from ``start`` to ``end``, the ``keys`` of the same places."""
    for index in range(start, end):
        block, key = blocks[index], keys[index]
        place = place_of(pool, key)
        oldest = pool.table[place]
        pool.keys[block] = key
        if oldest == NULL_BLOCK:
            pool.table[place] = block
            pool.counts[NUM_KEYS] += 1
        else:
            newest = pool.previous_same[oldest]
            pool.next_same[newest] = block
            pool.previous_same[block] = newest
            pool.next_same[block] = oldest
            pool.previous_same[oldest] = block
    pool.counts[NUM_HASHED] += end - start


@compilable
def find_leading(pool: PoolArrays, keys: Sequence[int], start: int, end: int, blocks: Ints) -> int:
    """How many of ``keys`` from ``start`` to ``end`` are cached, up to the first that is not.

    Their blocks, the oldest of several, are written into the same places of ``blocks``.
    """
    for index in range(start, end):
        block = find(pool, keys[index])
        if block == NULL_BLOCK:
            return index - start
        blocks[index] = block
    return end - start


@compilable
def find_all(pool: PoolArrays, keys: Sequence[int], count: int, blocks: Ints) -> None:
    """The block that caches each of the first ``count`` keys, the oldest of several; the null block where none does."""
    for index in range(count):
        blocks[index] = find(pool, keys[index])
