"""A block pool whose blocks may have several keys: parts of blocks are cached beside whole ones."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_pool import NO_KEY, BlockPool
from kvtwin.engine.compiled.arrays import NUM_HASHED
from kvtwin.engine.pool_listener import TablePart
from kvtwin.engine.request import BlockTables


class MultiKeyPool(BlockPool):
    """Blocks that a prompt can hit under more than one key, and held blocks that change their key.

    Its map is its own; the arrays know only the first key of each block, which tells where a freed one goes.

    Invariants (checked by :mod:`kvtwin.engine.invariants`), beside those of :class:`BlockPool`: a block with further
    keys has a first one; the map names a block under each of its keys, the oldest registration of a key first.
    """

    def __init__(self, num_blocks: int, block_sizes: Sequence[int]) -> None:
        """``block_sizes`` are those of the cache groups."""
        super().__init__(num_blocks)
        self._block_sizes = block_sizes
        self._blocks_of_key: dict[int, dict[int, None]] = {}
        self._further_keys: dict[int, list[int]] = {}
        self._prefix_tokens: dict[int, int] = {}
        self.find = self._find

    @property
    def num_cached_keys(self) -> int:
        return len(self._blocks_of_key)

    def allocate(self, count: int) -> list[int]:
        if count <= self.num_free_blocks:
            self._evict_next(count)
        return super().allocate(count)

    def blocks_with_key(self, key: int) -> list[int]:
        return list(self._blocks_of_key.get(key, ()))

    def keys_of(self, block: int) -> list[int]:
        """All keys of ``block``, the first one first."""
        return [self.keys[block], *self._further_keys.get(block, ())] if self.keys[block] != NO_KEY else []

    def prefix_tokens(self, block: int) -> int | None:
        """Tokens of the prefix that the first key of ``block`` names; None without a key."""
        return self._prefix_tokens.get(block)

    def beyond(self, tables: BlockTables, num_tokens: int) -> list[int]:
        """Blocks of ``tables`` whose first key names a prefix of more than ``num_tokens`` tokens."""
        return [block for table in tables for block in table if self._prefix_tokens.get(block, 0) > num_tokens]

    def register(self, block_ids: Sequence[int], keys: Sequence[int], part: TablePart | None = None) -> None:
        """Give held blocks the keys of whole blocks; those of parts are forgotten."""
        assert part
        for block, key, position in zip(block_ids, keys, part.kept, strict=True):
            self.forget(block)
            self._enter(block, key, (position + 1) * self._block_sizes[part.group_index])
        for listener in self.listeners:
            listener.registered(block_ids, keys, part)

    def add_key(self, block: int, key: int, prefix_tokens: int) -> bool:
        """Let a held block be hit under ``key`` as well, which names a prefix of ``prefix_tokens``.

        If its keys name shorter prefixes, they are forgotten. False: it has the key already.
        """
        if key in self.keys_of(block):
            return False
        if self.keys[block] != NO_KEY and self._prefix_tokens[block] < prefix_tokens:
            self.forget(block)
        self._enter(block, key, prefix_tokens)
        return True

    def forget(self, block: int) -> None:
        """Take the keys of a held block away: its content changes."""
        for key in self._leave(block):
            for listener in self.listeners:
                listener.lost_key(block, key)

    def move_keys(self, source: int, destination: int) -> None:
        """Let ``destination``, which has no key and will be a copy, be hit instead of ``source``."""
        prefix_tokens = self._prefix_tokens.get(source, 0)
        for key in self._leave(source):
            self._enter(destination, key, prefix_tokens)

    def reset(self) -> bool:
        if self.num_used_blocks:
            return False
        for state in (self._blocks_of_key, self._further_keys, self._prefix_tokens):
            state.clear()
        return super().reset()

    def _find(self, key: int) -> int | None:
        blocks = self._blocks_of_key.get(key)
        return next(iter(blocks)) if blocks else None

    def _evict_next(self, count: int) -> None:
        """Take their keys from the ``count`` blocks that are handed out next."""
        evictions, block = [], self.arrays.next[self.num_blocks]
        for _ in range(count):
            if keys := self._leave(block):
                evictions.append((block, keys))
            block = self.arrays.next[block]
        self.num_evictions += len(evictions)
        for block, (first, *further) in evictions:
            for listener in self.listeners:
                listener.evicted(block, first)
                for key in further:
                    listener.lost_key(block, key)

    def _enter(self, block: int, key: int, prefix_tokens: int) -> None:
        if self.keys[block] == NO_KEY:
            self.keys[block] = key
            self._prefix_tokens[block] = prefix_tokens
            self.arrays.counts[NUM_HASHED] += 1
        else:
            self._further_keys.setdefault(block, []).append(key)
        self._blocks_of_key.setdefault(key, {})[block] = None

    def _leave(self, block: int) -> list[int]:
        """Take all keys of ``block`` away and return them; none has the null block."""
        keys = self.keys_of(block)
        for key in keys:
            blocks = self._blocks_of_key[key]
            del blocks[block]
            if not blocks:
                del self._blocks_of_key[key]
        if keys:
            self.keys[block] = NO_KEY
            self.arrays.counts[NUM_HASHED] -= 1
            self._further_keys.pop(block, None)
            del self._prefix_tokens[block]
        return keys
