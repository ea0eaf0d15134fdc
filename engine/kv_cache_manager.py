"""The KV cache manager: gives requests their blocks, finds cached prefixes, makes full blocks hit-able.

Rules: specification, sections 3 (lookup) and 4 (allocation).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_pool import MANY_BLOCKS, NO_KEY, NULL_BLOCK
from kvtwin.engine.cache_groups import FindBlock, Span, StateSpaceGroup, make_groups
from kvtwin.engine.cache_groups.base import num_leading_blocks
from kvtwin.engine.cache_groups.boundaries import worth_resending
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.demand import Demand
from kvtwin.engine.executor import BlockCopy, HostCopy
from kvtwin.engine.forking import Forks
from kvtwin.engine.hit import Hit
from kvtwin.engine.host_memory.offload_tier import OffloadTier
from kvtwin.engine.host_memory.swap_space import SwapSpace
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.engine.multi_key_pool import MultiKeyPool
from kvtwin.engine.observer import Observer
from kvtwin.engine.part_hits import PartHits
from kvtwin.engine.part_keys import make_part_keys, make_pool
from kvtwin.engine.phantom_blocks import PhantomBlocks
from kvtwin.engine.pool_listener import TablePart
from kvtwin.engine.prefix_lookup import PrefixLookup
from kvtwin.engine.request import BlockTables, Request


class KVCacheManager:
    """Block tables of all requests over one pool.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a block's reference count is the number of tables and pins
    (:mod:`kvtwin.engine.retention`) that name it; blocks 0 to ``num_registered_blocks`` of a table carry the key of
    their prefix (in groups that forget, some of them none), later ones none.
    """

    def __init__(self, config: EngineConfig, keys: KeySpace) -> None:
        self._is_strict = config.vllm_strict
        self._keys = keys
        self._lookahead_slots = config.lookahead_slots
        self._hash_lookahead_tokens = config.hash_lookahead_tokens
        self._num_unsettled_tokens = config.num_unsettled_tokens
        self._max_model_len = config.max_model_len
        self._caches = config.enable_prefix_caching
        self.groups = make_groups(config)
        self.pool = make_pool(config, self.groups)
        self._part_hits = PartHits(self.pool, self.groups) if isinstance(self.pool, MultiKeyPool) else None
        self._common_block_tokens = config.common_block_tokens
        self._hits_drop_a_block = config.hits_drop_a_block
        self._forgetful = [index for index, group in enumerate(self.groups) if group.forgets]
        self._lookup = PrefixLookup(self.groups)
        self.phantoms = PhantomBlocks(self.pool)
        self._states = [group for group in self.groups if isinstance(group, StateSpaceGroup)]
        self.forks = Forks(self.pool, self.groups, keys.hash_block_size if self._caches else None)
        self.events = KVEventLog(keys, self.groups) if config.enable_kv_cache_events else None
        self._keyed_alignment_tokens = 1 if config.hits_parts else config.common_block_tokens
        self._registration = [
            (index, group.block_size, group.num_dropped_blocks, part_keys)
            for index, (group, part_keys) in enumerate(
                zip(self.groups, make_part_keys(config, self.groups, self._part_hits, self.events), strict=True)
            )
        ]
        """What :meth:`register`, which every request calls in every step, has to know of each group."""
        self._nothing: BlockTables = [[] for _ in self.groups]
        does_swap = config.preemption_mode == "swap"
        self.swap = SwapSpace(config.num_swap_blocks, self.groups, self.pool) if does_swap else None
        num_blocks, first = config.num_offload_blocks, config.num_swap_blocks + 1
        self.offload = OffloadTier(num_blocks, self.phantoms, first) if num_blocks else None
        self.host_memory = [memory for memory in (self.swap, self.offload) if memory]
        self.pool.listeners += [listener for listener in (self.events, self.offload) if listener]
        self._num_fitting_tokens = 0
        """The most that :meth:`why_never_fits` saw fit: fewer do as well."""
        self._observer = Observer()

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` from now on what requests find, ask for, get and let go."""
        self._observer = observer

    def start_step(self) -> None:
        """Take note that another step is being decided: what the step before registered will be written by then."""
        for group in self._states:
            group.unwritten.clear()

    def why_never_fits(self, request: Request, num_tokens: int) -> str | None:
        """Why ``num_tokens`` tokens of ``request`` do not fit when nothing else is held; None if they do."""
        if num_tokens <= self._num_fitting_tokens:
            return None
        num_slots = num_tokens
        if self._lookahead_slots:
            num_slots = min(num_tokens + self._lookahead_slots, self._max_model_len)
        num_blocks = sum(group.most_blocks(num_slots) for group in self.groups)
        if num_blocks > self.pool.num_usable_blocks:
            return f"needs {num_blocks} blocks, pool {self.pool.num_usable_blocks}"
        self._num_fitting_tokens = num_tokens
        return None

    # ---------------------------------------------------------------- lookup (specification, section 3)

    def find_hit(self, request: Request) -> Hit:
        """The longest cached prefix of ``request``, short of its last known token.

        Changes nothing but the request's junction, where a group could have served more than the others.
        """
        if self.swap and request in self.swap:
            tables, num_tokens, loads = self.swap.find(request, self.phantoms.find_filled)
            hit = Hit(tables, num_tokens, loads=loads, is_swapped=True)
            self._observer.looked_up(request, [[] for _ in self.groups], hit)
            return hit
        if not self._caches:
            return Hit([[] for _ in self.groups], 0)
        sought, max_hit_tokens = self._lookup_keys(request), request.num_tokens - 1
        keys = [
            self.pool_keys(request, 0, None, index) if group.hits_parts else sought[index]
            for index, group in enumerate(self.groups)
        ]
        tables, num_tokens, longest = self._lookup.find(sought, max_hit_tokens, self.pool.find)
        num_phantom_tokens = self._count_phantom_tokens(tables)
        if num_phantom_tokens and not self._is_strict:
            tables, num_tokens, longest = self._lookup.find(sought, max_hit_tokens, self.phantoms.find_filled)
        num_local_tokens, loads = num_tokens, []
        if self.offload:
            found = self._lookup.find(keys, max_hit_tokens, self.offload.second_chance(self.phantoms.find_filled))
            longest = max(longest, found[2])
            if found[1] > num_tokens:
                tables, num_tokens, _ = found
                loads = self.offload.take_loads(tables, keys)
        request.junction_tokens = longest if longest > num_tokens else 0
        hit = Hit(tables, num_tokens, num_phantom_tokens, loads, num_tokens - num_local_tokens)
        self._observer.looked_up(request, keys, hit)
        return hit

    def num_cached_tokens(self, request: Request, max_tokens: int | None = None, find: FindBlock | None = None) -> int:
        """Leading tokens of ``request`` that the device could serve now. Changes nothing but the request's keys.

        ``max_tokens`` are asked for: all but the last, unless it says otherwise. ``find`` tells what is cached, if not
        the pool. Full attention alone is asked piece by piece, so that keys far behind the first miss need not be made.
        """
        if not self._caches:
            return 0
        find = find or self.pool.find
        max_tokens = request.num_tokens - 1 if max_tokens is None else max_tokens
        num_keyed_tokens = request.num_tokens - self._hash_lookahead_tokens
        (group, *others) = self.groups
        if others or group.kind != "full_attention" or group.num_dropped_blocks or group.hits_parts:
            return self._lookup.find(self._lookup_keys(request), max_tokens, find)[1]
        num_blocks, most_blocks = 0, min(max_tokens, num_keyed_tokens) // group.block_size
        while num_blocks < most_blocks:
            end = min(most_blocks, 2 * num_blocks + 3 * MANY_BLOCKS)
            self._extend_keys(request, end * group.block_size)
            num_blocks += num_leading_blocks(self.pool_keys(request, num_blocks, end, 0), find)
            if num_blocks < end:
                break
        return num_blocks * group.block_size

    def must_wait(self, hit: Hit) -> bool:
        """Whether the hit includes a state that this step is only going to write."""
        return bool(self._states) and any(
            isinstance(group, StateSpaceGroup) and table and self.pool.keys[table[-1]] in group.unwritten
            for group, table in zip(self.groups, hit.block_tables, strict=True)
        )

    def pool_keys(self, request: Request, start: int, end: int | None, group_index: int) -> list[int]:
        """Keys under which a group caches blocks ``start`` to ``end`` of ``request`` (None: all that have keys).

        The key of a block that several hashes cover is that of its last hash.
        """
        keys, num_groups = request.block_keys, len(self.groups)
        hashes_per_block = self.groups[group_index].block_size // self._keys.hash_block_size
        if hashes_per_block > 1:
            keys = keys[hashes_per_block - 1 :: hashes_per_block]
        if num_groups == 1:
            return keys if start == 0 and end is None else keys[start:end]
        return [key * num_groups + group_index for key in keys[start:end]]

    def _lookup_keys(self, request: Request) -> list[list[int]]:
        """Keys of all that ``request`` may hit, per group: of parts of blocks where they can be hit, else of blocks."""
        self._extend_keys(request, request.num_tokens - self._hash_lookahead_tokens)
        return [
            [key * len(self.groups) + index for key in request.block_keys]
            if group.hits_parts
            else self.pool_keys(request, 0, None, index)
            for index, group in enumerate(self.groups)
        ]

    def _extend_keys(self, request: Request, num_tokens: int) -> None:
        num_keys = num_tokens // self._keys.hash_block_size
        if len(request.block_keys) < num_keys:
            request.content.extend_keys(request.block_keys, num_keys)

    def _count_phantom_tokens(self, tables: BlockTables) -> int:
        """Tokens in phantom blocks of ``tables``, of the group that has most of them."""
        phantoms = self.phantoms.blocks
        if not phantoms:
            return 0
        return max(
            group.block_size * sum(block in phantoms for block in table)
            for group, table in zip(self.groups, tables, strict=True)
        )

    # ---------------------------------------------------------------- allocation (specification, section 4)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: Hit | None = None,
        *,
        num_reserved_blocks: int = 0,
        reserve_full_sequence: bool = False,
        num_promised_blocks: int = 0,
    ) -> BlockTables | None:
        """Give ``request`` slots for ``num_new_tokens`` more tokens; return the blocks added, per group.

        With ``hit`` the request is admitted. ``num_reserved_blocks`` must stay free, and with
        ``reserve_full_sequence`` all known tokens must fit now, though only the new ones get blocks, which must leave
        the ``num_promised_blocks`` to others. Returns None when blocks are missing; then nothing changes, but that
        blocks behind the request's windows are let go.
        """
        if hit is None:
            if self._forgetful:
                self._forget(request)
            num_scheduled_tokens = request.num_computed_tokens + num_new_tokens
            num_slots = min(num_scheduled_tokens + self._lookahead_slots, self._max_model_len)
            if num_slots <= request.num_slots:  # what most decode steps need: nothing
                self.register(request, min(num_scheduled_tokens, request.num_tokens))
                return self._nothing
            span = Span(request.num_computed_tokens, num_scheduled_tokens, num_slots, is_admission=False)
            num_missing_blocks = self._missing(request, span, request.block_tables)
            if self.forks.unwritten:
                num_missing_blocks += len(self.forks.blocks_to_copy(request))
            demand = Demand(num_missing_blocks, self.pool.num_free_blocks)
        else:
            if hit.is_fork:
                return self._fork(request, num_reserved_blocks)
            if self.must_wait(hit):
                return None
            num_scheduled_tokens = hit.num_tokens + num_new_tokens
            lookahead_slots = 0 if hit.is_loading else self._lookahead_slots
            num_slots = min(num_scheduled_tokens + lookahead_slots, self._max_model_len)
            span = Span(hit.num_tokens, num_scheduled_tokens, num_slots, is_admission=True)
            num_missing_blocks = self._missing(request, span, hit.block_tables) + num_promised_blocks
            if reserve_full_sequence:
                num_tokens = min(request.num_tokens, self._max_model_len)
                whole = Span(hit.num_tokens, num_tokens, num_tokens, is_admission=True)
                num_whole_blocks = self._missing(request, whole, hit.block_tables, is_whole=True)
                num_missing_blocks = max(num_missing_blocks, num_whole_blocks)
            num_claimed_blocks = self._num_idle(hit.block_tables) + len(hit.loads) + self.forks.num_copies_to_come()
            demand = Demand(num_missing_blocks, self.pool.num_free_blocks, num_claimed_blocks, num_reserved_blocks)
        self._observer.demanded(request, demand)
        if not demand.is_met:
            return None
        if hit is None:
            self.forks.copy(request)
        elif not hit.is_held:
            self._adopt(request, hit)
            if hit.num_external_tokens:
                self._add_remote_blocks(request, hit.num_tokens)
        new_blocks = self._add_blocks(request, span)
        if hit is None or not hit.is_loading:
            self.register(request, min(num_scheduled_tokens, request.num_tokens))
        return new_blocks

    def free(self, request: Request, *, to_host: bool = False) -> None:
        """Let go of all blocks of ``request``; the deepest of a prefix will be evicted first.

        ``to_host`` keeps what it computed in the swap space, if there is one with room; else nothing stays there.
        """
        if self.swap:
            (self.swap.save if to_host else self.swap.drop)(request)
        self._observer.releases(request)
        for table in request.block_tables:
            self.pool.free(table[::-1])
        self.forks.unwritten.pop(request, None)
        for group in self._states:
            group.let_go(request)
        if self._part_hits:
            self._part_hits.let_go(request)
        request.block_tables = []
        request.num_registered_blocks = []
        request.num_slots = 0

    def take_blocks(self, request: Request) -> list[int]:
        """As :meth:`free`, but that the blocks stay held: to be freed later, at once, in the order returned."""
        blocks = [block for table in reversed(request.block_tables) for block in reversed(table)]
        request.block_tables = []
        self.free(request)
        return blocks

    def num_blocks_to_finish(self, request: Request, num_tokens: int) -> int:
        """Blocks that ``request`` lacks to hold ``num_tokens`` tokens."""
        span = Span(request.num_computed_tokens, num_tokens, num_tokens, is_admission=True)
        return self._missing(request, span, request.block_tables or self._nothing, is_whole=True)

    def forget(self, request: Request) -> None:
        """Let go of blocks of ``request`` behind its windows, if it has any."""
        if self._forgetful and request.block_tables:
            self._forget(request)

    def _missing(self, request: Request, span: Span, tables: BlockTables, *, is_whole: bool = False) -> int:
        """Blocks that ``tables`` of ``request`` lack for ``span``; ``is_whole``: to admit all of it some time."""
        num_missing_blocks = 0
        for index, (group, table) in enumerate(zip(self.groups, tables, strict=True)):
            count = (group.blocks_to_admit if is_whole else group.blocks_to_add)(request, span, table)
            if self._part_hits and self._part_hits.is_copied(request, index, span, table):
                count = max(count, 0) + 1
            num_missing_blocks += count
        return num_missing_blocks

    def _num_idle(self, tables: BlockTables) -> int:
        """Blocks that leave the free queue when ``tables`` are adopted."""
        ref_counts = self.pool.ref_counts
        return sum(1 for table in tables for block in table if block and not ref_counts[block])

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

    def _adopt(self, request: Request, hit: Hit) -> None:
        for table in hit.block_tables:
            self.pool.touch(table)
        request.block_tables = [list(table) for table in hit.block_tables]
        request.num_registered_blocks = [
            hit.num_tokens // group.block_size if group.hits_parts else len(table)
            for group, table in zip(self.groups, hit.block_tables, strict=True)
        ]
        request.num_forgotten_blocks = [0] * len(self.groups)
        if hit.loads or hit.is_swapped:
            self._load(request, hit)

    def _fork(self, request: Request, num_reserved_blocks: int) -> BlockTables | None:
        """Let ``request`` go on from the blocks of its parent; None if too few are free for the copies to come."""
        assert request.parent
        num_tokens = request.num_prompt_tokens
        is_done = self.forks.fork(request.parent, request, num_tokens, num_reserved_blocks=num_reserved_blocks)
        return [[] for _ in self.groups] if is_done else None

    def _load(self, request: Request, hit: Hit) -> None:
        """Put new blocks, which the next step fills from the host, where an adopted ``hit`` has loads."""
        if self.offload and not hit.is_swapped:
            self.offload.hold(hit.loads)  # what is read may not make room for what is evicted
        blocks = self.pool.allocate(len(hit.loads))
        for place, block in zip(hit.loads, blocks, strict=True):
            request.block_tables[place.group_index][place.position] = block
        if hit.is_swapped:
            assert self.swap
            request.num_registered_blocks = self.swap.restore(request, hit.loads, blocks)
        else:
            assert self.offload
            self.offload.load(hit.loads, blocks)
        for index, table in enumerate(request.block_tables):
            cached = [place for place in hit.loads if place.group_index == index and place.key != NO_KEY]
            if cached:
                kept = [place.position for place in cached]
                part = TablePart(request, index, range(kept[0], kept[-1] + 1), kept)
                self.pool.register([table[position] for position in kept], [place.key for place in cached], part)

    def _add_remote_blocks(self, request: Request, num_tokens: int) -> None:
        """Extend the tables of ``request`` to ``num_tokens``, in all groups before anything else is added to one.

        A group of which no later token looks at anything loaded gets its blocks with the others.
        """
        span = Span(num_tokens, num_tokens, num_tokens, is_admission=True)
        new_blocks = [
            group.add_blocks(request, span, table, self.pool) if group.num_live_tokens(num_tokens) else []
            for group, table in zip(self.groups, request.block_tables, strict=True)
        ]
        self._observer.granted(request, new_blocks)

    def _add_blocks(self, request: Request, span: Span) -> BlockTables:
        new_blocks, tables = [], request.block_tables
        for index, (group, table) in enumerate(zip(self.groups, tables, strict=True)):
            copies = self._part_hits.copy(request, index, span, table) if self._part_hits else []
            new_blocks.append(copies + group.add_blocks(request, span, table, self.pool))
        request.num_slots = min(
            group.num_slots(request, table) for table, group in zip(tables, self.groups, strict=True)
        )
        self._observer.granted(request, new_blocks)
        return new_blocks

    # ---------------------------------------------------------------- registration: full blocks can be hit

    def register(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` tokens hit-able, as far as they have keys."""
        if not self._caches:
            return
        alignment = self._keyed_alignment_tokens
        settled_tokens = max(0, num_tokens - self._num_unsettled_tokens)
        if len(self.groups) == 1:
            num_tokens = settled_tokens
        aligned_tokens = num_tokens - num_tokens % alignment
        num_known_tokens = request.num_tokens - self._hash_lookahead_tokens
        registered = request.num_registered_blocks
        for index, block_size, num_dropped_blocks, part_keys in self._registration:
            num_keyed_tokens = aligned_tokens
            if num_dropped_blocks and aligned_tokens:
                num_keyed_tokens = min(settled_tokens, settled_tokens - settled_tokens % alignment + block_size)
            end = min(num_keyed_tokens, num_known_tokens) // block_size
            if registered[index] < end:
                self._register_blocks(request, index, registered[index], end)
            if part_keys:
                part_keys.register(request, num_keyed_tokens)

    def _register_blocks(self, request: Request, index: int, start: int, end: int) -> None:
        """Give the full blocks from ``start`` to ``end`` of group ``index`` their keys."""
        group = self.groups[index]
        self._extend_keys(request, end * group.block_size)
        kept: Sequence[int] = range(start, end)
        blocks, keys = request.block_tables[index][start:end], self.pool_keys(request, start, end, index)
        if group.forgets or self.forks.any_yet:
            kept = self._kept(request, index, start, end)
            blocks = [blocks[position - start] for position in kept]
            keys = [keys[position - start] for position in kept]
        self.pool.register(blocks, keys, TablePart(request, index, range(start, end), kept))
        if isinstance(group, StateSpaceGroup):
            group.unwritten.update(keys)
        request.num_registered_blocks[index] = end

    def _kept(self, request: Request, group_index: int, start: int, end: int) -> list[int]:
        """Positions from ``start`` to ``end`` whose blocks are given keys, where blocks are let go or shared."""
        group, table = self.groups[group_index], request.block_tables[group_index]
        boundaries = worth_resending(
            request,
            group,
            common_block_tokens=self._common_block_tokens,
            hits_drop_a_block=self._hits_drop_a_block,
        )
        return [
            position
            for position in range(start, end)
            if table[position] != NULL_BLOCK
            and not (self.forks.any_yet and self.pool.keys[table[position]] != NO_KEY)
            and group.is_kept(position, boundaries)
        ]

    def mark_phantoms(self, request: Request) -> None:
        """Note that the step just scheduled for ``request`` will not run: what it registered stays empty.

        Nor is anything copied for it.
        """
        self.forks.roll_back(request)
        if isinstance(self.pool, MultiKeyPool):
            self.phantoms.mark(self.pool.beyond(request.block_tables, request.num_computed_tokens))
            return
        for table, registered, group in zip(
            request.block_tables, request.num_registered_blocks, self.groups, strict=True
        ):
            self.phantoms.mark(table[request.num_computed_tokens // group.block_size : registered])

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes if no request holds a block; return whether that was so."""
        if not self.pool.reset():
            return False
        if self.swap:
            self.swap.clear()
        return True

    # ---------------------------------------------------------------- what a step carries out

    def take_copies(self) -> list[BlockCopy]:
        """Copies of blocks of which a part was hit, that became necessary since the last call."""
        return self._part_hits.take_copies() if self._part_hits else []

    def take_host_copies(self) -> tuple[list[HostCopy], list[HostCopy]]:
        """Copies to and from the host that became necessary since the last call."""
        copies = [memory.pool.take_copies() for memory in self.host_memory]
        return [one for saves, _ in copies for one in saves], [one for _, loads in copies for one in loads]
