"""The longest prefix that every cache group can serve (specification, section 10.6)."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.cache_groups import CacheGroup, FindBlock, FullAttentionGroup
from kvtwin.engine.request import BlockTables


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
        self._asks_once = len(groups) == 1 or (len(self._kinds) == 2 and starts_full)

    def find(self, keys: Sequence[Sequence[int]], max_hit_tokens: int, find: FindBlock) -> tuple[BlockTables, int, int]:
        """Tables per group, the hit's tokens, and the longest prefix that some kind had alone.

        ``keys`` holds per group the keys of its blocks. Each kind may shorten the hit; then all look again, until they
        agree, but full attention, which can serve whatever is shorter than what it found. Beside full attention one
        other kind is asked once, and so is a group alone; several groups of one kind are asked again. This matters for
        windows of one token, of which a second question, without a block to give away, finds nothing.

        A kind that gives its last block away is asked for a block more. When it is asked again, it need not give away
        another one; but once a kind that gave nothing away shortens the hit, all give a block away anew.
        """
        tables: BlockTables = [[] for _ in range(self._num_groups)]
        num_tokens, longest = max_hit_tokens, 0
        have_dropped: set[CacheGroup] = set()
        full_tokens: dict[CacheGroup, int] = {}
        """What full attention found, by kind."""
        while True:
            asked_tokens = num_tokens
            for group, members in self._kinds:
                if group in full_tokens:
                    num_tokens = min(num_tokens, full_tokens[group])
                    continue
                num_dropped_blocks = 0 if group in have_dropped else group.num_dropped_blocks
                limit = num_tokens
                if num_dropped_blocks and self._num_groups > 1:
                    limit += group.margin_tokens
                group_keys = [keys[index] for index in members]
                found, num_found_tokens = group.find_hit(group_keys, limit, find, num_dropped_blocks)
                for index, table in zip(members, found, strict=True):
                    tables[index] = table
                if isinstance(group, FullAttentionGroup):
                    full_tokens[group] = num_found_tokens
                if num_dropped_blocks:
                    have_dropped.add(group)
                elif num_found_tokens < num_tokens:
                    have_dropped.clear()
                num_tokens = num_found_tokens
                longest = max(longest, num_tokens)
            if num_tokens >= asked_tokens or self._asks_once:
                break
        for group, members in self._kinds:
            if group in full_tokens:
                for index in members:
                    del tables[index][-(-num_tokens // group.block_size) :]
        return tables, num_tokens, longest
