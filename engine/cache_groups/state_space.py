"""State-space layers ("mamba")."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_groups.base import CacheGroup, FindBlock
from kvtwin.engine.request import BlockTables


class StateSpaceGroup(CacheGroup):
    """Layers that sum up all earlier tokens in one state, which fills a block.

    The block at position ``i`` of a table holds the state after the last token computed so far of those that the
    position stands for; only the newest state and the one that it goes on from are kept, all other positions hold the
    null block (vLLM's mode "align"). A hit needs only the state at its end. Without prefix caching a block stands for
    ``max_model_len`` tokens, so a request has a single one (mode "none").

    An executor needs no list of copies: a step that computes tokens ``start`` to ``end`` of a request reads the state
    at position ``(start - 1) // block_size`` of its table (none if ``start`` is 0) and writes that at
    ``(end - 1) // block_size``. Both hold blocks when the step is decided, and as steps run in order, whoever is given
    a block that was let go writes it later.
    """

    forgets = True
    hits_wait_a_step = True

    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> BlockTables:
        stride = self.alignment_blocks
        num_blocks = min(num_tokens // self.block_size, len(keys[0]))
        for end in range(num_blocks // stride * stride, 0, -stride):
            states = [state for group_keys in keys if (state := find(group_keys[end - 1])) is not None]
            if len(states) == len(keys):
                return [[NULL_BLOCK] * (end - 1) + [state] for state in states]
        return [[] for _ in keys]

    def blocks_to_add(self, num_slots: int, num_held_blocks: int) -> int:
        return 1 if self._blocks_for(num_slots) > num_held_blocks else 0

    def blocks_to_admit(self, num_tokens: int, num_held_blocks: int) -> int:
        return self.blocks_to_add(num_tokens, num_held_blocks)

    def most_blocks(self, num_slots: int) -> int:
        """The newest state, and per step in flight the one that it goes on from."""
        return min(self._blocks_for(num_slots), 1 + self._settings.max_steps_in_flight)

    def positions_to_skip(self, num_slots: int, num_held_blocks: int) -> int:
        return max(0, self._blocks_for(num_slots) - num_held_blocks - 1)

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - 1) // self.block_size

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        end = (index + 1) * self.block_size
        interval = self._settings.prefix_cache_retention_interval
        every_tokens = self.alignment_tokens if interval is None else interval
        return end in boundaries or (every_tokens != 0 and end % every_tokens == 0)
