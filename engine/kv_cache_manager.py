"""The KV cache manager: gives requests their blocks, finds cached prefixes, makes full blocks hit-able.

Rules: spec sections 3 (lookup) and 4 (allocation).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.block_keys import KeySpace
from engine.block_pool import BlockPool
from engine.cache_groups import FullAttentionGroup
from engine.config import EngineConfig
from engine.kv_events import KVEventLog
from engine.request import BlockTables, Request


@dataclass(frozen=True, slots=True)
class Hit:
    """What a lookup found: per group, the blocks of the longest cached prefix."""

    block_tables: BlockTables
    num_tokens: int
    num_phantom_tokens: int = 0
    """Tokens of vLLM's answer that lie in blocks which no step ever filled."""


class KVCacheManager:
    """Block tables of all requests over one pool.

    Invariants (checked by :mod:`engine.invariants`): a block's reference count is the number of tables that name
    it; blocks 0 to ``num_registered_blocks`` of a table carry the key of their prefix, later ones none.
    """

    def __init__(self, config: EngineConfig, keys: KeySpace) -> None:
        self._config = config
        self._keys = keys
        self.pool = BlockPool(config.num_blocks)
        self.groups = [FullAttentionGroup(self.pool, config.block_size)]
        self.phantom_blocks: set[int] = set()
        """Blocks with a key whose content was never computed."""
        self.events = KVEventLog(keys) if config.enable_kv_cache_events else None
        if self.events:
            self.pool.evicted_keys = []

    def fits_empty_pool(self, num_tokens: int) -> bool:
        """Whether a request of ``num_tokens`` slots fits when nothing else is held."""
        return self.blocks_needed(num_tokens) <= self.pool.num_usable_blocks

    def blocks_needed(self, num_tokens: int) -> int:
        """Blocks that a request with ``num_tokens`` slots holds, over all groups."""
        return sum(group.blocks_to_add(num_tokens, 0) for group in self.groups)

    def find_hit(self, request: Request) -> Hit:
        """The longest cached prefix of ``request``, short of its last known token. Changes nothing."""
        if not self._config.enable_prefix_caching:
            return Hit([[] for _ in self.groups], 0)
        max_hit_tokens = request.num_tokens - 1
        self._extend_keys(request, request.num_tokens)
        tables, num_phantom_tokens = [], 0
        for index, group in enumerate(self.groups):
            blocks = group.find_hit(self.pool_keys(request, 0, len(request.block_keys), index), max_hit_tokens)
            if self.phantom_blocks and not self.phantom_blocks.isdisjoint(blocks):
                blocks, num_phantom_blocks = self._judge_phantoms(blocks)
                num_phantom_tokens += num_phantom_blocks * group.block_size
            tables.append(blocks)
        num_tokens = min(len(table) * group.block_size for table, group in zip(tables, self.groups, strict=True))
        return Hit(tables, num_tokens, num_phantom_tokens)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: Hit | None = None,
        *,
        num_reserved_blocks: int = 0,
        reserve_full_sequence: bool = False,
    ) -> BlockTables | None:
        """Give ``request`` slots for ``num_new_tokens`` more tokens; return the new blocks per group.

        ``hit`` is adopted when the request is admitted. ``num_reserved_blocks`` must stay free, and with
        ``reserve_full_sequence`` all known tokens must fit now, though only the new ones get blocks. Returns None,
        changing nothing, when blocks are missing.
        """
        num_computed_tokens = hit.num_tokens if hit else request.num_computed_tokens
        num_scheduled_tokens = num_computed_tokens + num_new_tokens
        num_slots = min(num_scheduled_tokens, self._config.max_model_len)
        if hit is None and num_slots <= request.num_slots:
            new_blocks: BlockTables = [[] for _ in self.groups]  # what most decode steps need: nothing
        else:
            tables = hit.block_tables if hit else request.block_tables
            num_available_blocks = self.pool.num_free_blocks - num_reserved_blocks
            if hit is not None:
                num_available_blocks -= self._num_idle(hit.block_tables)
                if reserve_full_sequence:
                    num_sequence_slots = min(request.num_tokens, self._config.max_model_len)
                    if self._missing(num_sequence_slots, tables) > num_available_blocks:
                        return None
            if self._missing(num_slots, tables) > num_available_blocks:
                return None
            if hit is not None:
                self._adopt(request, hit)
            new_blocks = self._add_blocks(request, num_slots)
        self.register(request, min(num_scheduled_tokens, request.num_tokens))
        return new_blocks

    def register(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` tokens hit-able."""
        if not self._config.enable_prefix_caching:
            return
        for index, group in enumerate(self.groups):
            start, end = request.num_registered_blocks[index], num_tokens // group.block_size
            if start >= end:
                continue
            self._extend_keys(request, end * group.block_size)
            pool_keys = self.pool_keys(request, start, end, index)
            self.pool.register(request.block_tables[index][start:end], pool_keys)
            request.num_registered_blocks[index] = end
            if self.events:
                self.events.stored(request, group, index, start, end)

    def free(self, request: Request) -> None:
        """Let go of all blocks of ``request``; the deepest of a prefix will be evicted first."""
        for table in request.block_tables:
            self.pool.free(table[::-1])
        request.block_tables = []
        request.num_registered_blocks = []
        request.num_slots = 0

    def mark_phantoms(self, request: Request) -> None:
        """Note that the step just scheduled for ``request`` will not run: what it registered stays empty."""
        for table, registered, group in zip(
            request.block_tables, request.num_registered_blocks, self.groups, strict=True
        ):
            self.phantom_blocks.update(table[request.num_computed_tokens // group.block_size : registered])

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes if no request holds a block; return whether that was so."""
        if not self.pool.reset():
            return False
        self.phantom_blocks.clear()
        if self.events:
            self.events.cleared()
        return True

    def pool_keys(self, request: Request, start: int, end: int, group_index: int) -> list[int]:
        """Keys under which group ``group_index`` caches blocks ``start`` to ``end`` of ``request``."""
        keys = request.block_keys
        num_groups = len(self.groups)
        if num_groups == 1:
            return keys if start == 0 and end == len(keys) else keys[start:end]
        return [keys[index] * num_groups + group_index for index in range(start, end)]

    def _missing(self, num_slots: int, tables: BlockTables) -> int:
        missing = 0
        for group, table in zip(self.groups, tables, strict=True):
            missing += group.blocks_to_add(num_slots, len(table))
        return missing

    def _num_idle(self, tables: BlockTables) -> int:
        """Blocks that leave the free queue when ``tables`` are adopted."""
        ref_counts = self.pool.ref_counts
        return sum(1 for table in tables for block in table if block and not ref_counts[block])

    def _adopt(self, request: Request, hit: Hit) -> None:
        for table in hit.block_tables:
            self.pool.touch(table)
        request.block_tables = [list(table) for table in hit.block_tables]
        request.num_registered_blocks = [len(table) for table in hit.block_tables]

    def _add_blocks(self, request: Request, num_slots: int) -> BlockTables:
        new_blocks = []
        for index, (group, table) in enumerate(zip(self.groups, request.block_tables, strict=True)):
            blocks = self.pool.allocate(group.blocks_to_add(num_slots, len(table)))
            if self.phantom_blocks:
                self.phantom_blocks.difference_update(blocks)
            if self.events:
                self._log_evictions(self.events)
            request.block_tables[index] += blocks
            new_blocks.append(blocks)
        request.num_slots = min(
            len(table) * group.block_size for table, group in zip(request.block_tables, self.groups, strict=True)
        )
        return new_blocks

    def _judge_phantoms(self, blocks: list[int]) -> tuple[list[int], int]:
        """What may be served of hit ``blocks``, and how many of them vLLM would serve though nothing filled them."""
        phantoms = self.phantom_blocks
        num_phantoms = sum(1 for block in blocks if block in phantoms)
        if self._config.vllm_strict:
            return blocks, num_phantoms
        served: list[int] = []
        for block in blocks:
            filled = (twin for twin in self.pool.blocks_with_key(self.pool.keys[block]) if twin not in phantoms)
            replacement = next(filled, None)
            if replacement is None:
                break
            served.append(replacement)
        return served, num_phantoms

    def _extend_keys(self, request: Request, num_tokens: int) -> None:
        num_blocks = num_tokens // self._keys.block_size
        if len(request.block_keys) < num_blocks:
            request.content.extend_keys(request.block_keys, num_blocks)

    def _log_evictions(self, events: KVEventLog) -> None:
        for pool_key in self.pool.evicted_keys or ():
            key, group_index = divmod(pool_key, len(self.groups))
            events.removed(key, group_index)
        self.pool.evicted_keys = []
