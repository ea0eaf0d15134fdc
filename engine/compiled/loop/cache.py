"""Blocks of requests (equals :mod:`kvtwin.engine.kv_cache_manager` for one group of full attention)."""

from __future__ import annotations

from kvtwin.engine.compiled import pool_functions
from kvtwin.engine.compiled.arrays import NUM_FREE
from kvtwin.engine.compiled.key_table import find
from kvtwin.engine.compiled.loop.records import note_key
from kvtwin.engine.compiled.loop.state import (
    BLOCK_SIZE,
    CACHES,
    FIRST_BLOCK,
    IS_STRICT,
    MAX_MODEL_LEN,
    NUM_BLOCKS,
    NUM_COMPUTED,
    NUM_KEYS,
    NUM_PHANTOMS,
    NUM_REGISTERED,
    NUM_RUNNING,
    NUM_TOKENS,
    PHANTOM_TOKENS,
    RESERVES_ALL,
    TELLS_KEYS,
    WATERMARK_BLOCKS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable
from kvtwin.engine.compiled.pool_functions import NO_KEY, NULL_BLOCK


@compilable
def blocks_for(loop: LoopArrays, num_tokens: int) -> int:
    """``CacheGroup._blocks_for``."""
    return (num_tokens + loop.settings[BLOCK_SIZE] - 1) // loop.settings[BLOCK_SIZE]


@compilable
def never_fits(loop: LoopArrays, num_tokens: int) -> bool:
    """Whether ``KVCacheManager.why_never_fits`` has a reason."""
    return blocks_for(loop, num_tokens) > len(loop.pool.keys) - 1


@compilable
def find_hit(loop: LoopArrays, request: int) -> int:
    """``KVCacheManager.find_hit``: blocks of the longest cached prefix, which are written into the request's table."""
    numbers, row = loop.numbers, loop.requests[request]
    numbers[PHANTOM_TOKENS] = 0
    if not loop.settings[CACHES]:
        return 0
    block_size = loop.settings[BLOCK_SIZE]
    row[NUM_KEYS] = max(row[NUM_KEYS], row[NUM_TOKENS] // block_size)
    first = row[FIRST_BLOCK]
    end = first + (row[NUM_TOKENS] - 1) // block_size
    num_found = pool_functions.find_leading(loop.pool, loop.keys, first, end, loop.tables)
    if numbers[NUM_PHANTOMS] > 0:
        num_phantoms = 0
        for place in range(first, first + num_found):
            num_phantoms += loop.phantoms[loop.tables[place]]
        numbers[PHANTOM_TOKENS] = num_phantoms * block_size
        if num_phantoms > 0 and not loop.settings[IS_STRICT]:
            num_found = _find_leading_filled(loop, first, end)
    return num_found


@compilable
def _find_leading_filled(loop: LoopArrays, first: int, end: int) -> int:
    """``leading_blocks`` with ``PhantomBlocks.find_filled``."""
    for place in range(first, end):
        block = _find_filled(loop, loop.keys[place])
        if block == NULL_BLOCK:
            return place - first
        loop.tables[place] = block
    return end - first


@compilable
def _find_filled(loop: LoopArrays, key: int) -> int:
    oldest = find(loop.pool, key)
    block = oldest
    while block != NULL_BLOCK and loop.phantoms[block]:
        block = loop.pool.next_same[block]
        if block == oldest:
            block = NULL_BLOCK
    return block


@compilable
def admit_slots(loop: LoopArrays, request: int, num_hit_blocks: int, num_new_tokens: int) -> bool:
    """``KVCacheManager.allocate_slots`` with a hit, which stands in the request's table; False: too few blocks."""
    row, settings, pool = loop.requests[request], loop.settings, loop.pool
    num_scheduled_tokens = num_hit_blocks * settings[BLOCK_SIZE] + num_new_tokens
    num_blocks = blocks_for(loop, min(num_scheduled_tokens, settings[MAX_MODEL_LEN]))
    num_missing = max(0, num_blocks - num_hit_blocks)
    if settings[RESERVES_ALL]:
        all_blocks = blocks_for(loop, min(row[NUM_TOKENS], settings[MAX_MODEL_LEN]))
        num_missing = max(num_missing, all_blocks - num_hit_blocks)
    first = row[FIRST_BLOCK]
    num_claimed = 0
    for place in range(first, first + num_hit_blocks):
        if pool.ref_counts[loop.tables[place]] == 0:
            num_claimed += 1
    num_reserved = settings[WATERMARK_BLOCKS] if loop.numbers[NUM_RUNNING] > 0 else 0
    if num_missing > pool.counts[NUM_FREE] - num_claimed - num_reserved:
        return False
    pool_functions.touch(pool, loop.tables, first, first + num_hit_blocks)
    row[NUM_REGISTERED] = num_hit_blocks
    row[NUM_BLOCKS] = num_hit_blocks
    _add_blocks(loop, request, num_blocks)
    register(loop, request, min(num_scheduled_tokens, row[NUM_TOKENS]))
    return True


@compilable
def extend_slots(loop: LoopArrays, request: int, num_new_tokens: int) -> bool:
    """``KVCacheManager.allocate_slots`` of a running request; False: too few blocks."""
    row = loop.requests[request]
    num_scheduled_tokens = row[NUM_COMPUTED] + num_new_tokens
    num_blocks = blocks_for(loop, min(num_scheduled_tokens, loop.settings[MAX_MODEL_LEN]))
    if num_blocks - row[NUM_BLOCKS] > loop.pool.counts[NUM_FREE]:
        return False
    _add_blocks(loop, request, num_blocks)
    register(loop, request, min(num_scheduled_tokens, row[NUM_TOKENS]))
    return True


@compilable
def _add_blocks(loop: LoopArrays, request: int, num_blocks: int) -> None:
    """``KVCacheManager._add_blocks``, up to ``num_blocks``; what is handed out is no phantom any more."""
    row = loop.requests[request]
    count = num_blocks - row[NUM_BLOCKS]
    if count <= 0:
        return
    start = row[FIRST_BLOCK] + row[NUM_BLOCKS]
    pool_functions.allocate(loop.pool, count, loop.tables, start, loop.lost_keys)
    row[NUM_BLOCKS] = num_blocks
    if loop.settings[TELLS_KEYS]:
        for index in range(count):
            if loop.lost_keys[index] != NO_KEY:
                note_key(loop, -loop.tables[start + index], loop.lost_keys[index])
    if loop.numbers[NUM_PHANTOMS] > 0:
        for place in range(start, start + count):
            block = loop.tables[place]
            loop.numbers[NUM_PHANTOMS] -= loop.phantoms[block]
            loop.phantoms[block] = 0


@compilable
def register(loop: LoopArrays, request: int, num_tokens: int) -> None:
    """``KVCacheManager.register``."""
    if not loop.settings[CACHES]:
        return
    row = loop.requests[request]
    end = num_tokens // loop.settings[BLOCK_SIZE]
    if row[NUM_REGISTERED] < end:
        first = row[FIRST_BLOCK]
        start = first + row[NUM_REGISTERED]
        pool_functions.register(loop.pool, loop.tables, loop.keys, start, first + end)
        if loop.settings[TELLS_KEYS]:
            for place in range(start, first + end):
                note_key(loop, loop.tables[place], loop.keys[place])
        row[NUM_REGISTERED] = end
        row[NUM_KEYS] = max(row[NUM_KEYS], end)


@compilable
def free(loop: LoopArrays, request: int) -> None:
    """``KVCacheManager.free``."""
    row = loop.requests[request]
    first = row[FIRST_BLOCK]
    pool_functions.free(loop.pool, loop.tables, first + row[NUM_BLOCKS] - 1, first - 1, -1)
    row[NUM_BLOCKS] = 0
    row[NUM_REGISTERED] = 0


@compilable
def mark_phantoms(loop: LoopArrays, request: int) -> None:
    """``KVCacheManager.mark_phantoms``."""
    row = loop.requests[request]
    first = row[FIRST_BLOCK]
    for place in range(first + row[NUM_COMPUTED] // loop.settings[BLOCK_SIZE], first + row[NUM_REGISTERED]):
        block = loop.tables[place]
        if loop.pool.keys[block] != NO_KEY and not loop.phantoms[block]:
            loop.phantoms[block] = 1
            loop.numbers[NUM_PHANTOMS] += 1
