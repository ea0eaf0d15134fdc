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

    def find(self, keys: Sequence[Sequence[int]], max_hit_tokens: int, find: FindBlock) -> tuple[BlockTables, int, int]:
        """Tables per group, the hit's tokens, and the longest prefix that some kind had alone.

        ``keys`` holds per group the keys of its blocks. Each kind may shorten the hit, which the others must then
        be able to serve too, until all agree.
        """
        tables: BlockTables = [[] for _ in range(self._num_groups)]
        num_tokens, longest = max_hit_tokens, 0
        settled: set[int] = set()
        while len(settled) < len(self._kinds):
            for position, (group, members) in enumerate(self._kinds):
                if position in settled:
                    continue
                found = group.find_hit([keys[index] for index in members], num_tokens, find)
                for index, table in zip(members, found, strict=True):
                    tables[index] = table
                hit_tokens = len(found[0]) * group.block_size
                longest = max(longest, hit_tokens)
                if hit_tokens < num_tokens:
                    num_tokens = hit_tokens
                    settled = {position}
                else:
                    settled.add(position)
        return tables, num_tokens, longest
