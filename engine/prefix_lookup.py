"""The longest prefix that every cache group can serve (spec section 10)."""

from __future__ import annotations

from collections.abc import Sequence

from engine.cache_groups import CacheGroup, FindBlock, FullAttentionGroup
from engine.request import BlockTables


class PrefixLookup:
    """Looks prompts up in all groups at once: groups with equal specification together, full attention first."""

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._num_groups = len(groups)
        specs = list(dict.fromkeys(group.spec for group in groups))
        kinds = [[index for index, group in enumerate(groups) if group.spec == spec] for spec in specs]
        self._kinds = sorted(
            ((groups[members[0]], members) for members in kinds),
            key=lambda kind: not isinstance(kind[0], FullAttentionGroup),
        )
        starts_full = isinstance(self._kinds[0][0], FullAttentionGroup)
        self._asks_once = len(self._kinds) == 1 or (len(self._kinds) == 2 and starts_full)

    def find(self, keys: Sequence[Sequence[int]], max_hit_tokens: int, find: FindBlock) -> tuple[BlockTables, int, int]:
        """Tables per group, the hit's tokens, and the longest prefix that some kind had alone.

        ``keys`` holds per group the keys of its blocks. Each kind may shorten the hit; then all look again, until they
        agree. Beside full attention one other kind is asked once: whatever it can serve, full attention can too.
        """
        tables: BlockTables = [[] for _ in range(self._num_groups)]
        num_tokens, longest = max_hit_tokens, 0
        while True:
            asked_tokens = num_tokens
            for group, members in self._kinds:
                limit = num_tokens
                if group.num_dropped_blocks and self._num_groups > 1:
                    limit += group.block_size
                found = group.find_hit([keys[index] for index in members], limit, find)
                for index, table in zip(members, found, strict=True):
                    tables[index] = table
                num_tokens = len(found[0]) * group.block_size
                longest = max(longest, num_tokens)
            if num_tokens == asked_tokens or self._asks_once:
                break
        if self._asks_once:
            for group, members in self._kinds[:-1]:
                for index in members:
                    del tables[index][num_tokens // group.block_size :]
        return tables, num_tokens, longest
