"""Keys of parts of blocks: prefixes that end inside a block, or where a block's content is not what its place says.

Each group that has such blocks has one object here; :meth:`KVCacheManager.register` calls it when the request's full
blocks have their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_groups import CacheGroup, StateSpaceGroup
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.engine.multi_key_pool import MultiKeyPool
from kvtwin.engine.part_hits import PartHits
from kvtwin.engine.prefill_checkpoints import PrefillCheckpoints
from kvtwin.engine.request import Request
from kvtwin.engine.settings import EngineSettings


class PartKeys:
    """Gives a block the key of a prefix that its place in the table does not name."""

    def __init__(
        self,
        index: int,
        groups: Sequence[CacheGroup],
        settings: EngineSettings,
        pool: MultiKeyPool,
        events: KVEventLog | None,
    ) -> None:
        self._index = index
        self._num_groups = len(groups)
        self._block_size = groups[index].block_size
        self._hash_block_size = settings.hash_block_size
        self._pool = pool
        self._events = events

    def register(self, request: Request, num_tokens: int) -> None:
        """``num_tokens`` tokens of ``request`` can be cached now."""

    def _add(self, request: Request, block: int, num_tokens: int) -> int:
        """Let ``block`` be hit by the first ``num_tokens`` tokens of ``request``; return the key."""
        num_hashes = num_tokens // self._hash_block_size
        if len(request.block_keys) < num_hashes:
            request.content.extend_keys(request.block_keys, num_hashes)
        key = request.block_keys[num_hashes - 1] * self._num_groups + self._index
        if self._pool.add_key(block, key, num_tokens) and self._events:
            self._events.registered_part(request, self._index, num_hashes - 1)
        return key


class PromptEndKeys(PartKeys):
    """Full attention in blocks larger than a hash covers (specification, section 10.14).

    The block in which the last part of a prompt ends is cached under the key of that part too.
    """

    def __init__(
        self,
        index: int,
        groups: Sequence[CacheGroup],
        settings: EngineSettings,
        pool: MultiKeyPool,
        events: KVEventLog | None,
    ) -> None:
        super().__init__(index, groups, settings, pool, events)
        self._num_left_tokens = 0 if groups[index].num_dropped_blocks else 1
        self._lookahead_tokens = settings.hash_lookahead_tokens

    def register(self, request: Request, num_tokens: int) -> None:
        unit = self._hash_block_size
        end = min(request.num_prompt_tokens - self._num_left_tokens, request.num_tokens - self._lookahead_tokens)
        end -= end % unit
        table = request.block_tables[self._index]
        if end <= 0 or end > num_tokens or end % self._block_size == 0 or end // self._block_size >= len(table):
            return
        self._add(request, table[end // self._block_size], end)


class StateKeys(PartKeys):
    """States: checkpoints, and the state at the last part of a prompt (specification, sections 10.16 and 10.17)."""

    def __init__(
        self,
        index: int,
        groups: Sequence[CacheGroup],
        settings: EngineSettings,
        pool: MultiKeyPool,
        events: KVEventLog | None,
        part_hits: PartHits,
    ) -> None:
        super().__init__(index, groups, settings, pool, events)
        group = groups[index]
        assert isinstance(group, StateSpaceGroup)
        self._group = group
        self._part_hits = part_hits
        self._positions = PrefillCheckpoints(settings)

    def register(self, request: Request, num_tokens: int) -> None:
        table = request.block_tables[self._index]
        checkpoint = self._group.checkpoints.get(request)
        if checkpoint:
            self._register_checkpoint(request, table[checkpoint[1]], checkpoint[0])
            return
        unit = self._hash_block_size
        if num_tokens <= 0 or num_tokens != self._positions.position(request.num_prompt_tokens, unit):
            return
        position = -(-num_tokens // self._block_size) - 1
        block = table[position] if position < len(table) else NULL_BLOCK
        if block == NULL_BLOCK or self._pool.prefix_tokens(block) == num_tokens:
            return
        self._group.unwritten.add(self._add(request, block, num_tokens))
        if num_tokens % self._block_size:
            self._part_hits.keep(request, self._index, position, block)

    def _register_checkpoint(self, request: Request, block: int, num_tokens: int) -> None:
        """What ``block`` holds will be the state after ``num_tokens`` tokens, if that is worth anything."""
        at_prompt_end = self._positions.position(request.num_prompt_tokens, self._group.alignment_tokens)
        is_at_boundary = num_tokens % self._block_size == 0 and self._group.is_kept(
            num_tokens // self._block_size - 1, ()
        )
        if num_tokens not in (at_prompt_end, request.junction_tokens) and not is_at_boundary:
            self._pool.forget(block)
        elif block != NULL_BLOCK and self._pool.prefix_tokens(block) != num_tokens:
            self._pool.forget(block)
            self._group.unwritten.add(self._add(request, block, num_tokens))
