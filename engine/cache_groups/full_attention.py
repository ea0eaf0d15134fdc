"""Full attention."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock, find_in_all, leading_blocks
from kvtwin.engine.request import BlockTables


class FullAttentionGroup(CacheGroup):
    """Layers that look at every earlier token, so every block is kept as long as the request runs."""

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        tables = leading_blocks(keys, 0, num_tokens // self.block_size, find)
        num_blocks = max(0, len(tables[0]) - num_dropped_blocks)
        num_blocks -= num_blocks % self.alignment_blocks
        if num_blocks < len(tables[0]):
            tables = [table[:num_blocks] for table in tables]
        return tables, num_blocks * self.block_size


class PartlyHitFullAttentionGroup(FullAttentionGroup):
    """Full attention in blocks of which a hit may take a part: its keys are those of all parts."""

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        unit, parts = self.alignment_tokens, self.block_size // self.alignment_tokens
        whole_keys = [group_keys[parts - 1 :: parts] for group_keys in keys]
        tables = leading_blocks(whole_keys, 0, num_tokens // self.block_size, find)
        num_units = len(tables[0]) * parts
        for end in range(min(num_units + parts - 1, num_tokens // unit, len(keys[0])), num_units, -1):
            blocks = find_in_all([group_keys[end - 1] for group_keys in keys], find)
            if blocks:
                tables = [[*table, block] for table, block in zip(tables, blocks, strict=True)]
                num_units = end
                break
        num_units = max(0, num_units - num_dropped_blocks)
        return [table[: -(-num_units // parts)] for table in tables], num_units * unit
