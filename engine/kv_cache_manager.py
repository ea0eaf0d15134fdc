"""The KV cache manager: gives requests their blocks, finds cached prefixes, makes full blocks hit-able.

Rules: specification, sections 3 (lookup) and 4 (allocation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_metrics import MeasuredBlockPool
from kvtwin.engine.block_parts import BlockParts
from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.cache_groups import GroupContext, make_group
from kvtwin.engine.cache_groups.boundaries import worth_resending
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import BlockCopy, HostCopy
from kvtwin.engine.forking import Forks
from kvtwin.engine.host_memory.host_pool import HostLoad
from kvtwin.engine.host_memory.offload_tier import OffloadTier
from kvtwin.engine.host_memory.swap_space import SwapSpace
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.engine.observer import Demand, Observer
from kvtwin.engine.prefix_lookup import PrefixLookup
from kvtwin.engine.request import BlockTables, Request


@dataclass(frozen=True, slots=True)
class Hit:
    """What a lookup found: per group, the blocks of the longest cached prefix."""

    block_tables: BlockTables
    num_tokens: int
    num_phantom_tokens: int = 0
    """Tokens of vLLM's answer that lie in blocks which no step ever filled."""
    loads: Sequence[HostLoad] = ()
    """Positions whose content lies in the host; the tables hold null blocks there."""
    num_external_tokens: int = 0
    """Tokens that only the offload tier had."""
    is_swapped: bool = False
    """Whether this is what a preempted request had, not what a lookup found."""


class KVCacheManager:
    """Block tables of all requests over one pool.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a block's reference count is the number of tables and pins
    (:mod:`kvtwin.engine.retention`) that name it; blocks 0 to ``num_registered_blocks`` of a table carry the key of
    their prefix (in groups that forget, some of them none), later ones none.
    """

    def __init__(self, config: EngineConfig, keys: KeySpace) -> None:
        self._config = config
        self._keys = keys
        if config.kv_cache_metrics:
            self.pool: BlockPool = MeasuredBlockPool(config.num_blocks, config.kv_cache_metrics_sample)
        else:
            self.pool = BlockPool(config.num_blocks)
        self._alignment_tokens = config.alignment_tokens
        context = GroupContext(
            alignment_tokens=self._alignment_tokens,
            max_model_len=config.max_model_len,
            max_tokens_in_flight=config.max_num_batched_tokens * config.max_steps_in_flight,
            max_steps_in_flight=config.max_steps_in_flight,
            max_slots_ahead=config.token_budget * config.max_steps_in_flight + config.lookahead_slots,
            retention_interval=config.prefix_cache_retention_interval,
        )
        self._lookahead_slots = config.lookahead_slots
        self.groups = [
            make_group(spec, context, num_dropped_blocks=int(config.drops_last_block(spec)))
            for spec in config.group_specs
        ]
        self._hits_drop_a_block = any(group.num_dropped_blocks for group in self.groups)
        self._forgetful = [index for index, group in enumerate(self.groups) if group.forgets]
        self._lookup = PrefixLookup(self.groups)
        self.phantom_blocks: set[int] = set()
        """Blocks with a key whose content was never computed."""
        self.parts = BlockParts()
        self._groups_with_parts = [
            index
            for index, group in enumerate(self.groups)
            if group.caches_parts and config.enable_prefix_caching and group.block_size > keys.block_size
        ]
        self._unwritten_states: set[int] = set()
        """Keys given in this step that cannot be hit before the next, not even in an older block with that key."""
        self._copies: list[BlockCopy] = []
        self.forks = Forks(self.pool, self.groups, keys.block_size if config.enable_prefix_caching else None)
        self.events = KVEventLog(keys) if config.enable_kv_cache_events else None
        does_swap = config.preemption_mode == "swap"
        self.swap = SwapSpace(config.num_swap_blocks, self.groups, self.pool) if does_swap else None
        first = config.num_swap_blocks + 1
        self.offload = OffloadTier(config.num_offload_blocks, first) if config.num_offload_blocks else None
        self.host_memory = [memory for memory in (self.swap, self.offload) if memory]
        self._observer: Observer | None = None
        if self.events or self.offload:
            self.pool.evicted = []

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` what is looked up, handed out, named and let go from now on."""
        self._observer = observer
        if self.pool.evicted is None:
            self.pool.evicted = []

    def start_step(self) -> None:
        """Take note that another step is being decided: what the step before registered will be written by then."""
        self._unwritten_states.clear()

    def why_never_fits(self, request: Request, num_tokens: int) -> str | None:
        """Why ``num_tokens`` tokens of ``request`` do not fit when nothing else is held; None if they do."""
        if self._lookahead_slots:
            num_tokens = min(num_tokens + self._lookahead_slots, self._config.max_model_len)
        num_blocks = sum(group.most_blocks(num_tokens) for group in self.groups)
        num_usable_blocks = self.pool.num_usable_blocks
        return f"needs {num_blocks} blocks, pool {num_usable_blocks}" if num_blocks > num_usable_blocks else None

    def find_hit(self, request: Request) -> Hit:
        """The longest cached prefix of ``request``, short of its last known token.

        Changes nothing but the request's junction, where a group could have served more than the others.
        """
        if self.swap and request in self.swap:
            tables, num_tokens, loads = self.swap.find(request, self._find_filled)
            hit = Hit(tables, num_tokens, loads=loads, is_swapped=True)
            if self._observer:
                self._observer.looked_up(request, [[] for _ in self.groups], hit)
            return hit
        if not self._config.enable_prefix_caching:
            return Hit([[] for _ in self.groups], 0)
        self._extend_keys(request, request.num_tokens - self._keys.lookahead_tokens)
        keys = [self.pool_keys(request, 0, None, index) for index in range(len(self.groups))]
        max_hit_tokens = request.num_tokens - 1
        tables, num_tokens, longest = self._lookup.find(keys, max_hit_tokens, self.pool.find)
        num_phantom_tokens = self._count_phantom_tokens(tables)
        if num_phantom_tokens and not self._config.vllm_strict:
            tables, num_tokens, longest = self._lookup.find(keys, max_hit_tokens, self._find_filled)
        num_local_tokens, loads = num_tokens, []
        if self.offload:
            found = self._lookup.find(keys, max_hit_tokens, self.offload.second_chance(self._find_filled))
            longest = max(longest, found[2])
            if found[1] > num_tokens:
                tables, num_tokens, _ = found
                loads = self.offload.take_loads(tables, keys)
        request.junction_tokens = longest if longest > num_tokens else 0
        hit = Hit(tables, num_tokens, num_phantom_tokens, loads, num_tokens - num_local_tokens)
        if self._observer:
            self._observer.looked_up(request, keys, hit)
        return hit

    def must_wait(self, hit: Hit) -> bool:
        """Whether the hit includes a state that this step is only going to write."""
        return bool(self._unwritten_states) and any(
            group.hits_wait_a_step and any(self.pool.keys[block] in self._unwritten_states for block in table)
            for group, table in zip(self.groups, hit.block_tables, strict=True)
        )

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
        ``reserve_full_sequence`` all known tokens must fit now, though only the new ones get blocks. Returns None when
        blocks are missing; then nothing changes, but that blocks behind the request's windows are let go.
        """
        if self._forgetful and hit is None:
            self._forget(request)
        num_computed_tokens = hit.num_tokens if hit else request.num_computed_tokens
        num_scheduled_tokens = num_computed_tokens + num_new_tokens
        num_slots = min(num_scheduled_tokens + self._lookahead_slots, self._config.max_model_len)
        if hit is None and num_slots <= request.num_slots:
            new_blocks: BlockTables = [[] for _ in self.groups]  # what most decode steps need: nothing
        else:
            if hit is not None and self.must_wait(hit):
                return None
            tables = hit.block_tables if hit else request.block_tables
            num_missing_blocks = self._missing(num_slots, tables)
            num_claimed_blocks = 0
            to_copy: list[tuple[int, int]] = []
            if self.forks.unwritten:
                if hit is None:
                    to_copy = self.forks.blocks_to_copy(request)
                    num_missing_blocks += len(to_copy)
                else:
                    num_claimed_blocks = self.forks.num_copies_to_come()
            if hit is not None:
                num_claimed_blocks += self._num_idle(hit.block_tables) + len(hit.loads)
                if reserve_full_sequence:
                    num_sequence_slots = min(request.num_tokens, self._config.max_model_len)
                    num_missing_blocks = max(num_missing_blocks, self._missing_to_admit(num_sequence_slots, tables))
            num_free_blocks = self.pool.num_free_blocks
            if self._observer:
                demand = Demand(num_missing_blocks, num_free_blocks, num_claimed_blocks, num_reserved_blocks)
                self._observer.demanded(request, demand)
            if num_missing_blocks > num_free_blocks - num_claimed_blocks - num_reserved_blocks:
                return None
            if hit is not None:
                self._adopt(request, hit)
            if self.forks.unwritten:
                self.forks.unwritten.pop(request, None)
                self._copies += self.forks.copy(request, to_copy, self._take(len(to_copy)))
            new_blocks = self._add_blocks(request, num_slots)
        self.register(request, min(num_scheduled_tokens, request.num_tokens))
        return new_blocks

    def register(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` tokens hit-able, as far as they have keys."""
        if not self._config.enable_prefix_caching:
            return
        num_keyed_tokens = num_tokens - num_tokens % self._alignment_tokens
        if self._keys.lookahead_tokens:
            num_keyed_tokens = min(num_keyed_tokens, request.num_tokens - self._keys.lookahead_tokens)
        for index, group in enumerate(self.groups):
            start, end = request.num_registered_blocks[index], num_keyed_tokens // group.block_size
            if group.num_dropped_blocks and 0 < end < num_tokens // group.block_size:
                end += group.num_dropped_blocks
            if start < end:
                self._register_blocks(request, index, start, end)
            if index in self._groups_with_parts:
                self._register_part(request, index, num_keyed_tokens)

    def _register_blocks(self, request: Request, index: int, start: int, end: int) -> None:
        """Make the full blocks from ``start`` to ``end`` of group ``index`` hit-able."""
        group = self.groups[index]
        self._extend_keys(request, end * group.block_size)
        kept: Sequence[int] = range(start, end)
        blocks, keys = request.block_tables[index][start:end], self.pool_keys(request, start, end, index)
        if group.forgets or self.forks.any_yet:
            kept = self._kept(request, index, start, end)
            blocks, keys = (
                [blocks[position - start] for position in kept],
                [keys[position - start] for position in kept],
            )
        self.pool.register(blocks, keys)
        if self._observer:
            self._observer.registered(request, keys, kept, index)
        if group.hits_wait_a_step:
            self._unwritten_states.update(keys)
        request.num_registered_blocks[index] = end
        if self.events:
            self.events.stored(request, group, index, range(start, end), kept)

    def _register_part(self, request: Request, index: int, num_tokens: int) -> None:
        """Give the block in which the prompt's last part ends its second key, if it is among the full ones."""
        block_size, hash_tokens = self.groups[index].block_size, self._keys.block_size
        num_hashes = (request.num_prompt_tokens - 1) // hash_tokens
        position, num_tokens_inside = divmod(num_hashes * hash_tokens, block_size)
        if num_tokens_inside and position < num_tokens // block_size:
            key = request.block_keys[num_hashes - 1] * len(self.groups) + index
            is_new = self.parts.add(request.block_tables[index][position], key)
            if is_new and self.events:
                self.events.stored_part(request, self.groups[index], index, num_hashes - 1)

    def free(self, request: Request) -> None:
        """Let go of all blocks of ``request``; the deepest of a prefix will be evicted first."""
        if self._observer:
            self._observer.freed(request)
        for table in request.block_tables:
            self.pool.free(table[::-1])
        if self.forks.unwritten:
            self.forks.unwritten.pop(request, None)
        request.block_tables = []
        request.num_registered_blocks = []
        request.num_slots = 0

    def mark_phantoms(self, request: Request) -> None:
        """Note that the step just scheduled for ``request`` will not run: what it registered stays empty.

        Nor is anything copied for it.
        """
        if self.forks.any_yet:
            self._copies = self.forks.roll_back(request, self._copies)
        for table, registered, group in zip(
            request.block_tables, request.num_registered_blocks, self.groups, strict=True
        ):
            unfilled = table[request.num_computed_tokens // group.block_size : registered]
            self.phantom_blocks.update(block for block in unfilled if self.pool.keys[block] != NO_KEY)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes if no request holds a block; return whether that was so."""
        if not self.pool.reset():
            return False
        self.phantom_blocks.clear()
        self.parts.clear()
        for memory in self.host_memory:
            memory.clear()
        if self.events:
            self.events.cleared()
        return True

    def pool_keys(self, request: Request, start: int, end: int | None, group_index: int) -> list[int]:
        """Keys under which a group caches blocks ``start`` to ``end`` of ``request`` (None: all that have keys).

        The key of a block that several hashes cover is that of its last hash.
        """
        keys, num_groups = request.block_keys, len(self.groups)
        hashes_per_block = self.groups[group_index].block_size // self._keys.block_size
        if hashes_per_block > 1:
            keys = keys[hashes_per_block - 1 :: hashes_per_block]
        if num_groups == 1:
            return keys if start == 0 and end is None else keys[start:end]
        return [key * num_groups + group_index for key in keys[start:end]]

    def take_copies(self) -> list[BlockCopy]:
        """Copies between blocks that became necessary since the last call."""
        copies, self._copies = self._copies, []
        return copies

    def take_host_copies(self) -> tuple[list[HostCopy], list[HostCopy]]:
        """Copies to and from the host that became necessary since the last call."""
        saves: list[HostCopy] = []
        loads: list[HostCopy] = []
        for memory in self.host_memory:
            saved, loaded = memory.pool.take_copies()
            saves += saved
            loads += loaded
        return saves, loads

    def _missing(self, num_slots: int, tables: BlockTables) -> int:
        missing = 0
        for group, table in zip(self.groups, tables, strict=True):
            missing += group.blocks_to_add(num_slots, len(table))
        return missing

    def _missing_to_admit(self, num_tokens: int, tables: BlockTables) -> int:
        return sum(
            group.blocks_to_admit(num_tokens, len(table)) for group, table in zip(self.groups, tables, strict=True)
        )

    def _forget(self, request: Request) -> None:
        """Let go of blocks behind the windows; steps in flight still look at them (specification, section 10.3)."""
        num_processed_tokens = request.num_computed_tokens - request.num_tokens_in_flight
        for index in self._forgetful:
            table = request.block_tables[index]
            dead = []
            num_dead_blocks = self.groups[index].num_dead_blocks(num_processed_tokens)
            for position in range(num_dead_blocks - 1, request.num_forgotten_blocks[index] - 1, -1):
                dead.append(table[position])
                table[position] = NULL_BLOCK
            request.num_forgotten_blocks[index] = max(request.num_forgotten_blocks[index], num_dead_blocks)
            self.pool.free(dead)

    def _kept(self, request: Request, group_index: int, start: int, end: int) -> list[int]:
        """Positions from ``start`` to ``end`` whose blocks are given keys, where blocks are let go or shared."""
        group = self.groups[group_index]
        boundaries = worth_resending(request, group, self._alignment_tokens, hits_drop_a_block=self._hits_drop_a_block)
        table = request.block_tables[group_index]
        return [
            position
            for position in range(start, end)
            if table[position] != NULL_BLOCK
            and self.pool.keys[table[position]] == NO_KEY
            and group.is_kept(position, boundaries)
        ]

    def _num_idle(self, tables: BlockTables) -> int:
        """Blocks that leave the free queue when ``tables`` are adopted."""
        ref_counts = self.pool.ref_counts
        return sum(1 for table in tables for block in table if block and not ref_counts[block])

    def _adopt(self, request: Request, hit: Hit) -> None:
        for table in hit.block_tables:
            self.pool.touch(table)
        request.block_tables = [list(table) for table in hit.block_tables]
        request.num_registered_blocks = [len(table) for table in hit.block_tables]
        request.num_forgotten_blocks = [0] * len(self.groups)
        if hit.loads or hit.is_swapped:
            self._load(request, hit)

    def _load(self, request: Request, hit: Hit) -> None:
        """Put new blocks, which the next step fills from the host, where an adopted ``hit`` has loads."""
        blocks = self.pool.allocate(len(hit.loads))
        for place, block in zip(hit.loads, blocks, strict=True):
            request.block_tables[place.group_index][place.position] = block
        if hit.is_swapped:
            assert self.swap
            request.num_registered_blocks = self.swap.restore(request, hit.loads, blocks)
        else:
            assert self.offload
            self.offload.load(hit.loads, blocks)
        self._note_new(blocks)  # only now: what is read may not make room for what is evicted
        with_key = [(block, place.key) for block, place in zip(blocks, hit.loads, strict=True) if place.key != NO_KEY]
        self.pool.register([block for block, _ in with_key], [key for _, key in with_key])
        if self.events:
            for index, group in enumerate(self.groups):
                kept = [place.position for place in hit.loads if place.group_index == index and place.key != NO_KEY]
                if kept:
                    self.events.stored(request, group, index, range(kept[0], kept[-1] + 1), kept)

    def _add_blocks(self, request: Request, num_slots: int) -> BlockTables:
        new_blocks = []
        for index, (group, table) in enumerate(zip(self.groups, request.block_tables, strict=True)):
            blocks = self._take(group.blocks_to_add(num_slots, len(table)))
            if num_skipped := group.positions_to_skip(num_slots, len(table)):
                blocks = [NULL_BLOCK] * num_skipped + blocks
            request.block_tables[index] += blocks
            new_blocks.append(blocks)
        request.num_slots = min(
            len(table) * group.block_size for table, group in zip(request.block_tables, self.groups, strict=True)
        )
        if self._observer:
            self._observer.allocated(request, new_blocks)
        return new_blocks

    def _take(self, count: int) -> list[int]:
        """Blocks from the free queue; what they cached is gone."""
        blocks = self.pool.allocate(count)
        self._note_new(blocks)
        return blocks

    def _count_phantom_tokens(self, tables: BlockTables) -> int:
        """Tokens in blocks of ``tables`` that nothing ever filled, of the group that has most of them."""
        if not self.phantom_blocks:
            return 0
        return max(
            group.block_size * sum(block in self.phantom_blocks for block in table)
            for group, table in zip(self.groups, tables, strict=True)
        )

    def _find_filled(self, key: int) -> int | None:
        """The oldest block with ``key`` that was filled."""
        return next((block for block in self.pool.blocks_with_key(key) if block not in self.phantom_blocks), None)

    def _extend_keys(self, request: Request, num_tokens: int) -> None:
        num_blocks = num_tokens // self._keys.block_size
        if len(request.block_keys) < num_blocks:
            request.content.extend_keys(request.block_keys, num_blocks)

    def _note_new(self, blocks: Sequence[int]) -> None:
        """Do what is due when ``blocks`` were handed out."""
        if self.pool.evicted:
            for block, key in self.pool.evicted:
                if self._observer:
                    self._observer.evicted(block, key)
                if self.events:
                    self.events.removed(*divmod(key, len(self.groups)))
                    if (part_key := self.parts.remove(block)) is not None:
                        self.events.removed(*divmod(part_key, len(self.groups)))
                if self.offload and block not in self.phantom_blocks and self._find_filled(key) is None:
                    self.offload.store(key, block)
            self.pool.evicted.clear()
        if self.parts.num_keys:
            for block in blocks:
                self.parts.remove(block)
        if self.phantom_blocks:
            self.phantom_blocks.difference_update(blocks)
