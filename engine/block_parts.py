"""Second keys of blocks of full attention, where a hash covers only a part of a block.

Such a block is cached under the key of the whole and, if the prompt's last hash short of its last token ends inside it,
under the key of that part too. No lookup asks for a part, so a second key changes no decision; it is counted, published
and evicted with its block.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.cache_groups import CacheGroup
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.engine.pool_listener import PoolListener
from kvtwin.engine.request import Request


class BlockParts(PoolListener):
    """The second key of each block that has one.

    Invariant (checked by :mod:`kvtwin.engine.invariants`): a block with a second key has its own one too.
    """

    def __init__(self, keys: KeySpace, groups: Sequence[CacheGroup], events: KVEventLog | None) -> None:
        """``events`` has to stand before this among the pool's listeners."""
        self.group_indices = [
            index
            for index, group in enumerate(groups)
            if group.caches_parts and group.block_size > keys.hash_block_size
        ]
        """Groups whose blocks may have a second key."""
        self._hash_block_size = keys.hash_block_size
        self._groups = groups
        self._events = events
        self._key_of_block: dict[int, int] = {}
        self._num_blocks_of_key: Counter[int] = Counter()

    @property
    def blocks(self) -> Iterable[int]:
        """Blocks that have a second key."""
        return self._key_of_block

    @property
    def num_keys(self) -> int:
        """Distinct second keys."""
        return len(self._num_blocks_of_key)

    def register(self, request: Request, group_index: int, num_tokens: int) -> None:
        """Give the block in which the last part of the prompt ends its second key, if it has none.

        Only if the block is among the full ones of the first ``num_tokens`` tokens.
        """
        block_size, hash_block_size = self._groups[group_index].block_size, self._hash_block_size
        num_hashes = (request.num_prompt_tokens - 1) // hash_block_size
        position, num_tokens_inside = divmod(num_hashes * hash_block_size, block_size)
        if not num_tokens_inside or position >= num_tokens // block_size:
            return
        block = request.block_tables[group_index][position]
        if block in self._key_of_block:
            return
        key = request.block_keys[num_hashes - 1] * len(self._groups) + group_index
        self._key_of_block[block] = key
        self._num_blocks_of_key[key] += 1
        if self._events:
            self._events.registered_part(request, group_index, num_hashes - 1)

    def evicted(self, block: int, key: int) -> None:
        if self._events and block in self._key_of_block:
            self._events.evicted(block, self._key_of_block[block])

    def taken(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            key = self._key_of_block.pop(block, None)
            if key is not None:
                self._num_blocks_of_key[key] -= 1
                if not self._num_blocks_of_key[key]:
                    del self._num_blocks_of_key[key]

    def cleared(self) -> None:
        self._key_of_block.clear()
        self._num_blocks_of_key.clear()
