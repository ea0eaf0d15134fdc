"""Chunked local attention."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock, leading_blocks
from kvtwin.engine.request import BlockTables


class ChunkedLocalGroup(CacheGroup):
    """Layers that look at earlier tokens of the same chunk of ``window_tokens`` only; older chunks are let go.

    So all chunks before that of the next token count as hit, whether anything of them is cached or not.
    """

    has_window = True
    forgets = True

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        start = self.num_dead_blocks(num_tokens)
        tables = leading_blocks(keys, start, num_tokens // self.block_size, find)
        return [[NULL_BLOCK] * start + table for table in tables], (start + len(tables[0])) * self.block_size

    def _blocks_at_once(self, num_slots: int, num_slots_ahead: int) -> int:
        num_live_slots = min(self.window_tokens + num_slots_ahead, self._settings.max_model_len)
        return min(self._blocks_for(num_slots), self._blocks_for(num_live_slots))

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self.window_tokens * self.window_tokens // self.block_size

    def num_live_tokens(self, num_computed_tokens: int) -> int:
        return num_computed_tokens % self.window_tokens
