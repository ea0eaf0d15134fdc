"""The invariant checker: recomputes from scratch what the engine keeps up step by step."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.contiguous.contiguous_cache import ContiguousCache
from kvtwin.engine.encoder_cache import EncoderCache, needs_embeddings
from kvtwin.engine.executor import Step
from kvtwin.engine.kv_cache_manager import KVCacheManager
from kvtwin.engine.multi_key_pool import MultiKeyPool
from kvtwin.engine.request import Request, RequestStatus
from kvtwin.engine.scheduler import Scheduler


class InvariantError(AssertionError):
    """The engine contradicts itself: a bug."""


def require(condition: bool, message: str, *about: object) -> None:
    if not condition:
        raise InvariantError(message.format(*about))


def _drafts_and_tokens(step: Step) -> list[tuple[int, int]]:
    num_tokens = dict(zip(step.requests, step.num_tokens, strict=True))
    return [(number, num_tokens[request]) for request, number in step.num_drafts.items()]


def _may_be_registered_by_another(cache: KVCacheManager, request: Request, group_index: int, position: int) -> bool:
    """Whether a fork shares this block and has not counted it as registered, though it has a key."""
    if not cache.forks.any_yet:
        return False
    num_shared_tokens = cache.forks.unwritten.get(request)
    if num_shared_tokens is not None and position == num_shared_tokens // cache.groups[group_index].block_size:
        return True
    keys = cache.pool_keys(request, 0, None, group_index)
    block = request.block_tables[group_index][position]
    return position < len(keys) and cache.pool.keys[block] == keys[position]


class InvariantChecker:
    """Checks a scheduler, its requests, its block pool and its steps. Costs time in proportion to the pool."""

    _may_write_nowhere = False
    """Whether a step may compute a token whose block was let go."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def check(self) -> None:
        """Raise InvariantError for the first contradiction found between two calls of the engine."""
        self._check_queues()
        if isinstance(self._scheduler.encoder, EncoderCache):
            self._check_encoder(self._scheduler.encoder)
        cache = self._scheduler.kv_cache
        if isinstance(cache, KVCacheManager):
            self._check_requests(cache)
            self._check_pins(cache.pool)
            self._check_forks(cache)
            self._check_references(cache.pool)
            self._check_free_queue(cache.pool)
            self._check_cache_map(cache)
            self._check_host_memory(cache)
        elif isinstance(cache, ContiguousCache):
            self._check_ranges(cache)

    def check_step(self, step: Step) -> None:
        """Raise InvariantError if a step that was just scheduled contradicts itself or breaks the token budget."""
        require(
            len(step.requests) == len(step.num_tokens) == len(step.num_computed_tokens) == len(step.samples),
            "the lists of a step are not parallel",
        )
        require(len(set(step.requests)) == len(step.requests), "a request is in a step twice")
        require(all(num_tokens > 0 for num_tokens in step.num_tokens), "a request is in a step without a token")
        require(
            all(0 < number < num_tokens for number, num_tokens in _drafts_and_tokens(step)),
            "a request verifies more drafts than it computes tokens",
        )
        require(sum(step.num_tokens) == step.total_tokens, "the total of a step is wrong")
        require(step.total_tokens <= self._scheduler.config.token_budget, "a step is above the token budget")
        if isinstance(self._scheduler.encoder, EncoderCache):
            self._check_embeddings(step, self._scheduler.encoder)
        if isinstance(self._scheduler.kv_cache, KVCacheManager):
            self._check_writes(step, self._scheduler.kv_cache)

    def _check_queues(self) -> None:
        scheduler = self._scheduler
        running, waiting = list(scheduler.running), list(scheduler.waiting)
        ids = [request.request_id for request in running + waiting]
        require(len(ids) == len(set(ids)), "a request is in two places")
        require(set(ids) == set(scheduler.live), "live requests and queues differ")
        require(len(running) <= scheduler.config.max_running_requests, "more requests run than seats")
        for request in running:
            require(request.status is RequestStatus.RUNNING, "{} is in running", request)
        for request in waiting:
            self._check_waiting(request)

    def _check_waiting(self, request: Request) -> None:
        require(request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), "{} is waiting", request)
        require(not request.block_tables, "{} waits and holds blocks", request)
        require(request.num_drafts == 0, "{} waits and holds drafts", request)

    def _block_holders(self) -> list[Request]:
        return self._scheduler.running

    def _other_held_blocks(self) -> list[list[list[int]]]:
        """Tables that are no request's own."""
        return [pin.tables for pin in self._scheduler.retention.pins.values()]

    def _check_encoder(self, encoder: EncoderCache) -> None:
        sizes = encoder.entries
        require(encoder.num_free + sum(sizes.values()) == encoder.size, "room for embeddings is lost")
        without_holder = [name for name, holders in encoder.holders.items() if not holders]
        require(set(encoder.evictable) == set(without_holder), "who can be evicted and who has no holder differ")
        require(
            encoder.num_free + sum(sizes[name] for name in without_holder) == encoder.num_reclaimable,
            "the room that can be had for embeddings is wrong",
        )
        expected: dict[str, set[Request]] = {name: set() for name in sizes}
        for request, positions in encoder.held.items():
            require(self._scheduler.live.get(request.request_id) is request, "{} ended and holds images", request)
            for position in positions:
                name = request.images[position].content_hash
                require(name in sizes, "{} holds {}, which is not kept", request, name)
                expected[name].add(request)
        require(encoder.holders == expected, "holders of embeddings are wrong")

    def _check_embeddings(self, step: Step, encoder: EncoderCache) -> None:
        """What a step computes of images, it has."""
        images = [request.images[position] for request, positions in step.images.items() for position in positions]
        config = self._scheduler.config
        keeps_whole = config.disable_chunked_mm_input and config.prefill_lookahead_tokens <= 1  # which cuts after it
        require(
            sum(image.num_embeddings for image in images) <= config.encoder_budget, "a step encodes more than it may"
        )
        require(set(step.images) <= set(step.requests), "images are encoded for nobody")
        for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
            end = start + num_tokens
            for image in request.images:
                if image.end_tokens <= start or image.offset_tokens >= end:
                    continue
                is_held = request in encoder.holders.get(image.content_hash, ())
                require(is_held or not needs_embeddings(image, start, end), "{} lacks an image", request)
                require(
                    not keeps_whole or start > image.offset_tokens or end >= image.end_tokens,
                    "{} computes a part of an image",
                    request,
                )

    def _check_requests(self, cache: KVCacheManager) -> None:
        for request in self._scheduler.running:
            require(
                0 <= request.num_computed_tokens <= request.num_tokens + request.num_placeholders,
                "{} computed more than there is",
                request,
            )
            require(
                len(request.block_keys) * self._scheduler.config.hash_block_size <= request.num_tokens,
                "{} has keys of unknown tokens",
                request,
            )
            for index, (table, group) in enumerate(zip(request.block_tables, cache.groups, strict=True)):
                registered = request.num_registered_blocks[index]
                require(
                    len(table) * group.block_size >= request.num_computed_tokens, "{} computed without slots", request
                )
                require(registered * group.block_size <= request.num_tokens, "{} registered unknown tokens", request)
                if isinstance(cache.pool, MultiKeyPool):
                    self._check_prefix_keys(cache, cache.pool, request, index)
                else:
                    self._check_keys(cache, request, index)
                held = [block for block in table if block != NULL_BLOCK]
                require(len(set(held)) == len(held), "{} has a block twice", request)
                most_blocks = group.most_blocks(len(table) * group.block_size)
                require(
                    len(held) <= most_blocks or self._scheduler.config.vllm_strict,  # which rejects nobody
                    "{} holds more blocks than it was said to need",
                    request,
                )
                needed = table[group.num_dead_blocks(request.num_computed_tokens) :]
                may_lack_block = group.kind == "chunked_local_attention" and self._scheduler.config.vllm_strict
                require(NULL_BLOCK not in needed or may_lack_block, "{} lacks a block", request)

    def _check_keys(self, cache: KVCacheManager, request: Request, index: int) -> None:
        """Blocks have the keys of their places, up to the last that was registered."""
        table, registered = request.block_tables[index], request.num_registered_blocks[index]
        expected = cache.pool_keys(request, 0, registered, index)
        actual = [cache.pool.keys[block] for block in table]
        may_lack_key = cache.groups[index].forgets
        require(
            all(key == known or (may_lack_key and key == NO_KEY) for key, known in zip(actual, expected, strict=False)),
            "{} has a block under a wrong key",
            request,
        )
        early = [position for position in range(registered, len(table)) if actual[position] != NO_KEY]
        require(
            all(_may_be_registered_by_another(cache, request, index, position) for position in early),
            "{} has a key too early",
            request,
        )

    def _check_prefix_keys(self, cache: KVCacheManager, pool: MultiKeyPool, request: Request, index: int) -> None:
        """Blocks have keys of prefixes of the request; those of attention end in the block."""
        block_size, forgets = cache.groups[index].block_size, cache.groups[index].forgets
        for position, block in enumerate(request.block_tables[index]):
            num_tokens = pool.prefix_tokens(block)
            if num_tokens is None:
                is_registered = position < request.num_registered_blocks[index]
                require(forgets or not is_registered, "{} has a block without its key", request)
                continue
            if _may_be_registered_by_another(cache, request, index, position):
                continue
            num_hashes = num_tokens // self._scheduler.config.hash_block_size
            request.content.extend_keys(request.block_keys, num_hashes)
            require(
                request.block_keys[num_hashes - 1] * len(cache.groups) + index == pool.keys[block],
                "{} has a block under a wrong key",
                request,
            )
            is_at_place = position * block_size < num_tokens <= (position + 1) * block_size
            require(is_at_place or cache.groups[index].kind == "mamba", "{} has a block at a wrong place", request)

    def _check_forks(self, cache: KVCacheManager) -> None:
        forks = cache.forks
        if not forks.any_yet:
            return
        for request, num_tokens in forks.unwritten.items():
            require(bool(request.block_tables), "{} shares blocks and holds none", request)
            require(request.num_computed_tokens == num_tokens, "{} shares a block that it has written", request)
        for request in self._scheduler.running:
            if forks.blocks_to_copy(request):
                require(bool(forks.unwritten), "{} is about to write a block that is not its own", request)
                require(
                    request.num_slots <= request.num_computed_tokens,
                    "{} has slots in a block that is not its own",
                    request,
                )

    def _check_writes(self, step: Step, cache: KVCacheManager) -> None:
        """A block with several holders is not written, but for what the others took over in this very step.

        That is a hit on blocks that the step fills, also that of a fork's parent, or a fork of the writer: what it
        writes belongs to the prompt of both, or comes behind it, where the fork will see nothing before it copies the
        block.
        """
        hit_tokens: dict[Request | None, int] = {}
        hit_tokens.update((one.request, one.num_hit_tokens) for one in step.admitted if not one.is_fork)
        forks = {one.request for one in step.admitted if one.is_fork}
        for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
            if request in forks:
                continue
            end = start + num_tokens
            for index, group in enumerate(cache.groups):
                if group.kind == "mamba":  # states, not tokens
                    continue
                size, table = group.block_size, request.block_tables[index]
                for position in range(start // size, -(-end // size)):
                    block = table[position]
                    if block == NULL_BLOCK and self._may_write_nowhere:
                        continue
                    is_part = isinstance(cache.pool, MultiKeyPool) and end >= (cache.pool.prefix_tokens(block) or 0)
                    require(
                        position < request.num_registered_blocks[index] or cache.pool.keys[block] == NO_KEY or is_part,
                        "{} writes block {}, which the cache has under a key",
                        request,
                        block,
                    )
                    if cache.pool.ref_counts[block] == 1:
                        continue
                    last_written = min(end, (position + 1) * size) - 1
                    for other in self._scheduler.running:
                        if other is not request and block in other.block_tables[index]:
                            source = other.parent if other in forks else other
                            is_taken_over = source is request or last_written < hit_tokens.get(source, 0)
                            require(
                                is_taken_over and other.block_tables[index][position] == block,
                                "{} writes block {}, which {} holds too",
                                request,
                                block,
                                other,
                            )

    def _check_references(self, pool: BlockPool) -> None:
        owners = [request.block_tables for request in self._block_holders()]
        owners += self._other_held_blocks()
        held = Counter(block for tables in owners for table in tables for block in table if block != NULL_BLOCK)
        counted = {block: count for block, count in enumerate(pool.ref_counts) if count}
        wrong = [block for block in counted.keys() | held.keys() if counted.get(block) != held[block]]
        require(not wrong, "blocks {}: references and holders differ", wrong)

    def _check_pins(self, pool: BlockPool) -> None:
        retention, keys = self._scheduler.retention, pool.keys
        pins = list(retention.pins.values())
        for session, pin in retention.pins.items():
            pinned = [block for table in pin.tables for block in table]
            require(len(set(pinned)) == len(pinned), "session {} pins a block twice", session)
            require(all(keys[block] != NO_KEY for block in pinned), "session {} pins a block without a key", session)
        distinct = {block for pin in pins for table in pin.tables for block in table}
        require(len(distinct) == retention.num_pinned_blocks, "the number of pinned blocks is wrong")
        ends = [pin.ended_ns for pin in pins]
        require(ends == sorted(ends), "pins are not in order of age")

    def _check_free_queue(self, pool: BlockPool) -> None:
        queue = pool.free_queue()
        require(len(queue) == len(set(queue)) == pool.num_free_blocks, "the free count and the free queue differ")
        require(NULL_BLOCK not in queue, "the null block is free")
        require(not any(map(pool.ref_counts.__getitem__, queue)), "a held block is in the free queue")
        require(pool.num_free_blocks + pool.num_used_blocks == pool.num_usable_blocks, "blocks are lost")

    def _check_cache_map(self, cache: KVCacheManager) -> None:
        pool = cache.pool
        with_key = [block for block, key in enumerate(pool.keys) if key != NO_KEY]
        require(len(with_key) == pool.num_hashed_blocks, "the number of blocks with a key is wrong")
        keys_of = pool.keys_of if isinstance(pool, MultiKeyPool) else lambda block: [pool.keys[block]]
        named = [(key, block) for block in with_key for key in keys_of(block)]
        for key, block in named:
            require(block in pool.blocks_with_key(key), "block {} is not in the map", block)
        distinct = {key for key, _ in named}
        require(len(distinct) == pool.num_cached_keys, "the map holds keys that no block has")
        require(sum(len(pool.blocks_with_key(key)) for key in distinct) == len(named), "the map names a block twice")
        require(cache.phantoms.blocks <= set(with_key), "a phantom block has no key")

    def _check_host_memory(self, cache: KVCacheManager) -> None:
        config = self._scheduler.config
        expected = range(1, config.num_swap_blocks + 1)
        if cache.swap:
            owned = list(cache.swap.pool.free_blocks())
            for request, blocks in cache.swap.owned_blocks():
                require(request.status is RequestStatus.PREEMPTED, "{} is swapped", request)
                require(not request.block_tables, "{} is swapped and holds blocks", request)
                owned += blocks
            require(sorted(owned) == list(expected), "host blocks for swapping are lost or owned twice")
        if cache.offload:
            first = expected.stop
            owned = [*cache.offload.pool.free_blocks(), *cache.offload.cached_blocks()]
            expected = range(first, first + config.num_offload_blocks)
            require(sorted(owned) == list(expected), "host blocks of the offload tier are lost or owned twice")

    def _check_ranges(self, cache: ContiguousCache) -> None:
        pool = cache.pool
        require(set(cache.ranges) == set(self._scheduler.running), "who runs and who has a range differ")
        for request, (start, size) in cache.ranges.items():
            (table,) = request.block_tables
            require(table == list(range(start, start + len(table))), "{} strays from its range", request)
            require(request.num_computed_tokens <= len(table) <= size, "{} lacks slots", request)
        free = pool.free_ranges()
        held = [(start, start + size) for start, size in cache.ranges.values()]
        end = 1
        for first, behind in sorted(free + held):
            require(end == first < behind, "ranges overlap or leave a hole")
            end = behind
        require(end == pool.num_usable_blocks + 1, "ranges leave a hole at the end")
        require(sum(behind - first for first, behind in free) == pool.num_free_blocks, "the free count is wrong")
        require(
            all(left[1] < right[0] for left, right in pairwise(free)), "free ranges are not in order, or not merged"
        )
