"""Debugging: blocks that nobody may read are filled with NaN, so that whoever reads them says so."""

from __future__ import annotations

from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.executor import Step
from kvtwin.gpu.paged_cache import PagedCache


class Poison:
    """Fills blocks of a cache with NaN: those just handed out, and free ones that no prompt can hit.

    A free block that has a key keeps its content: it may be hit. What was filled is not filled again before somebody
    had it.
    """

    def __init__(self, cache: PagedCache, pool: BlockPool) -> None:
        self._cache = cache
        self._pool = pool
        self._filled: set[int] = set()

    def fill_handed_out(self, step: Step) -> None:
        """Blocks that ``step`` hands out, or reads from the host: to be done after its saves, before its loads."""
        blocks = {load.device_block for load in step.loads} | {copy.destination for copy in step.copies}
        for admission in step.admitted:
            if not admission.is_fork:
                (table,) = admission.block_tables
                blocks.update(table[-(-admission.num_hit_tokens // self._cache.block_size) :])
        for _, (new_blocks,) in step.new_blocks:
            blocks.update(new_blocks)
        self._filled -= blocks
        self._cache.poison(sorted(blocks))

    def fill_free(self) -> None:
        """Free blocks without a key: to be done after the copies of a step, which may need them."""
        pool = self._pool
        free = {
            block
            for block in range(NULL_BLOCK + 1, pool.num_blocks)
            if pool.ref_counts[block] == 0 and pool.keys[block] == NO_KEY
        }
        self._cache.poison(sorted(free - self._filled))
        self._filled = free
