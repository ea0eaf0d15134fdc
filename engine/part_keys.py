"""Keys of parts of blocks: prefixes that end inside a block, or where a block's content is not what its place says.

Each group that has such blocks has one object here; :meth:`KVCacheManager.register` calls it when the request's full
blocks have their keys.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from kvtwin.engine.block_pool import NULL_BLOCK, BlockPool
from kvtwin.engine.cache_groups import CacheGroup, StateSpaceGroup
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.engine.multi_key_pool import MultiKeyPool
from kvtwin.engine.part_hits import PartHits
from kvtwin.engine.prefill_checkpoints import PrefillCheckpoints
from kvtwin.engine.request import Request
from kvtwin.engine.settings import EngineSettings


class PartKeys(ABC):
    """Gives blocks of one group the keys of prefixes that their places in the table do not name."""

    def __init__(self, index: int, settings: EngineSettings, part_hits: PartHits, events: KVEventLog | None) -> None:
        spec = settings.group_specs[index]
        self._index = index
        self._num_groups = len(settings.group_specs)
        self._part_hits = part_hits
        self._pool = part_hits.pool
        self._events = events
        self._block_size = spec.block_size
        self._hash_block_size = settings.hash_block_size
        self._lookahead_tokens = settings.hash_lookahead_tokens
        self._num_left_tokens = 0 if settings.drops_last_block(spec) else 1
        """Tokens of a prompt that the hit of the same prompt leaves at least."""

    @abstractmethod
    def register(self, request: Request, num_tokens: int) -> None:
        """Take note that ``num_tokens`` tokens of ``request`` can be cached now."""

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

    def register(self, request: Request, num_tokens: int) -> None:
        end = min(request.num_prompt_tokens - self._num_left_tokens, request.num_tokens - self._lookahead_tokens)
        end -= end % self._hash_block_size
        position, num_tokens_inside = divmod(end, self._block_size)
        table = request.block_tables[self._index]
        if 0 < end <= num_tokens and num_tokens_inside and position < len(table):
            self._add(request, table[position], end)


class StateKeys(PartKeys):
    """States: checkpoints, and the state at the last part of a prompt (specification, sections 10.16 and 10.17)."""

    def __init__(
        self,
        group: StateSpaceGroup,
        index: int,
        settings: EngineSettings,
        part_hits: PartHits,
        events: KVEventLog | None,
    ) -> None:
        super().__init__(index, settings, part_hits, events)
        self._group = group
        self._positions = PrefillCheckpoints(settings)

    def register(self, request: Request, num_tokens: int) -> None:
        table = request.block_tables[self._index]
        checkpoint = self._group.checkpoints.get(request)
        if checkpoint:
            self._register_checkpoint(request, table[checkpoint[1]], checkpoint[0])
            return
        if num_tokens <= 0 or num_tokens != self._positions.position(request.num_prompt_tokens, self._hash_block_size):
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
        group, (position, num_tokens_behind) = self._group, divmod(num_tokens, self._block_size)
        at_prompt_end = self._positions.position(request.num_prompt_tokens, group.alignment_tokens)
        is_at_boundary = not num_tokens_behind and group.is_kept(position - 1, ())
        if num_tokens not in (at_prompt_end, request.junction_tokens) and not is_at_boundary:
            self._pool.forget(block)
        elif block != NULL_BLOCK and self._pool.prefix_tokens(block) != num_tokens:
            self._pool.forget(block)
            group.unwritten.add(self._add(request, block, num_tokens))


def make_pool(settings: EngineSettings, groups: Sequence[CacheGroup]) -> BlockPool:
    """A pool; where states or parts of blocks are cached, one in which blocks have several keys."""
    has_parts = any(group.block_size > settings.hash_block_size for group in groups)
    if not settings.enable_prefix_caching or not (has_parts or settings.caches_states):
        return BlockPool(settings.num_blocks)
    return MultiKeyPool(settings.num_blocks, [group.block_size for group in groups])


def make_part_keys(
    settings: EngineSettings, groups: Sequence[CacheGroup], part_hits: PartHits | None, events: KVEventLog | None
) -> list[PartKeys | None]:
    """Per group, what gives its blocks the keys of parts; None where it has no such blocks."""
    made: list[PartKeys | None] = []
    for index, group in enumerate(groups):
        if part_hits and isinstance(group, StateSpaceGroup):
            made.append(StateKeys(group, index, settings, part_hits, events))
        elif part_hits and group.kind == "full_attention" and group.block_size > settings.hash_block_size:
            made.append(PromptEndKeys(index, settings, part_hits, events))
        else:
            made.append(None)
    return made
