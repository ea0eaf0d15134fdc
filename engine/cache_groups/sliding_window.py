"""Sliding-window attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock, blocks_backwards
from kvtwin.engine.request import BlockTables


class SlidingWindowGroup(CacheGroup):
    """Layers that look at the ``window_tokens`` latest tokens, the current one included; older blocks are let go.

    A hit needs only the blocks that the next token looks at, so by default only the tails of prefixes that are worth
    resending are given keys.
    """

    has_window = True
    forgets = True

    @cached_property
    def _tail_blocks(self) -> int:
        """Blocks at the end of a prefix that the next token looks at."""
        return self._blocks_for(self.window_tokens - 1)

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        num_blocks = min(num_tokens // self.block_size, len(keys[0]))
        tables = [[NULL_BLOCK] * num_blocks for _ in keys]
        alignment_blocks, tail_blocks = self.alignment_blocks, self._tail_blocks
        run = 0
        found = zip(*(blocks_backwards(group_keys, num_blocks, find) for group_keys in keys), strict=True)
        for index, block_per_group in zip(range(num_blocks - 1, -1, -1), found, strict=True):
            blocks = [block for block in block_per_group if block is not None]
            if len(blocks) < len(keys):
                run = 0
                continue
            if run == 0 and (index + 1 - num_dropped_blocks) % alignment_blocks:
                continue
            for table, block in zip(tables, blocks, strict=True):
                table[index] = block
            run += 1
            if run >= tail_blocks + num_dropped_blocks:
                end = index + run - num_dropped_blocks
                start = max(index, self.num_dead_blocks(end * self.block_size))  # all of a window of one token
                return [[NULL_BLOCK] * start + table[start:end] for table in tables], end * self.block_size
        end = max(0, run - run % alignment_blocks - num_dropped_blocks)  # all that there is from the first block on
        end -= end % alignment_blocks
        return [table[:end] for table in tables], end * self.block_size

    def _blocks_at_once(self, num_slots: int, num_slots_ahead: int) -> int:
        num_live_slots = self.window_tokens - 1 + self._settings.num_unsettled_tokens + num_slots_ahead
        num_live_slots = min(num_live_slots, self._settings.max_model_len)
        return min(self._blocks_for(num_slots), self._blocks_for(num_live_slots) + 1)

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.num_live_tokens(num_computed_tokens)) // self.block_size

    def num_live_tokens(self, num_computed_tokens: int) -> int:
        num_live_tokens = self.window_tokens - 1 + self._settings.num_unsettled_tokens
        return min(max(0, num_computed_tokens), num_live_tokens)

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        end = (index + 1) * self.block_size
        tail_tokens = self._tail_blocks * self.block_size
        dropped_tokens = self.num_dropped_blocks * self.block_size
        interval = self._settings.prefix_cache_retention_interval
        if interval != 0:
            every_tokens = self.alignment_tokens if interval is None else interval
            if tail_tokens + dropped_tokens >= every_tokens:
                return True
            boundaries = [] if interval is None else list(boundaries)
            boundaries.append(-(-end // every_tokens) * every_tokens)
            if end > dropped_tokens:
                boundaries.append(-(-(end - dropped_tokens) // every_tokens) * every_tokens)
        return any(boundary - tail_tokens < end <= boundary + dropped_tokens for boundary in boundaries)
