"""Full attention."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock, leading_blocks
from kvtwin.engine.request import BlockTables


class FullAttentionGroup(CacheGroup):
    """Layers that look at every earlier token, so every block is kept as long as the request runs."""

    caches_parts = True

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> BlockTables:
        tables = leading_blocks(keys, 0, num_tokens // self.block_size, find)
        num_blocks = max(0, len(tables[0]) - num_dropped_blocks)
        num_blocks -= num_blocks % self.alignment_blocks
        return [table[:num_blocks] for table in tables] if num_blocks < len(tables[0]) else tables
