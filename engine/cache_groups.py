"""Cache groups: layers whose keys and values are kept under the same rule share block tables.

All groups of an engine take blocks from one pool (spec section 10). A kind of group is one small class here; the
manager knows only the interface of :class:`CacheGroup`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from engine.block_pool import NULL_BLOCK
from engine.cache_group_spec import CacheGroupSpec
from engine.request import BlockTables

FindBlock = Callable[[int], int | None]
"""The block that caches a key, None if there is none."""


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What all groups of an engine share."""

    alignment_tokens: int
    """Hits are multiples of this: the least common multiple of the groups' block sizes."""
    max_model_len: int
    max_tokens_in_flight: int
    """Tokens of all steps that may be under way at once."""
    retention_interval: int | None
    """``prefix_cache_retention_interval``: None keeps every tail, 0 only those that resend a prompt, m one per m."""


class CacheGroup(ABC):
    """One table per request; position ``i`` of it stands for tokens ``i * block_size`` onwards."""

    forgets = False
    """Whether blocks are let go while the request runs."""

    def __init__(self, spec: CacheGroupSpec, context: GroupContext) -> None:
        self.spec = spec
        self.kind = spec.kind
        self.block_size = spec.block_size
        self._context = context
        self._most_live_blocks: int | None = None
        """Most blocks of one request that are needed at once; None where it grows with the request."""

    @abstractmethod
    def find_hit(self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock) -> BlockTables:
        """Tables of the longest cached prefix of at most ``num_tokens`` tokens, for all groups of this kind.

        ``keys`` holds, per group, the keys of the prompt's blocks; a prefix counts only if every group has it. Hits
        are aligned. Positions that the group does not need any more hold the null block.
        """

    def blocks_to_add(self, num_slots: int, num_held_blocks: int) -> int:
        """Blocks missing from a table of ``num_held_blocks`` to have ``num_slots`` token slots."""
        return max(0, self._blocks_for(num_slots) - num_held_blocks)

    def blocks_to_admit(self, num_tokens: int, num_held_blocks: int) -> int:
        """Blocks missing to admit a request whole that has ``num_tokens`` known tokens (spec section 10)."""
        num_blocks = self._blocks_for(num_tokens)
        if self._most_live_blocks is not None:
            num_blocks = min(num_blocks, self._most_live_blocks)
        return max(0, num_blocks - num_held_blocks)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no later token looks at."""
        return 0

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        """Whether full block ``index`` is given its key; ``boundaries`` are prefix lengths worth resending."""
        return True


class FullAttentionGroup(CacheGroup):
    """Layers that look at every earlier token, so every block is kept as long as the request runs."""

    def find_hit(self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock) -> BlockTables:
        tables = _leading_blocks(keys, 0, num_tokens // self.block_size, find)
        surplus = len(tables[0]) % (self._context.alignment_tokens // self.block_size)
        return [table[: len(table) - surplus] for table in tables] if surplus else tables


class SlidingWindowGroup(CacheGroup):
    """Layers that look at the ``window_tokens`` latest tokens, the current one included; older blocks are let go.

    A hit needs only the blocks that the next token looks at, so by default only the tails of prefixes that are worth
    resending are given keys.
    """

    forgets = True

    def __init__(self, spec: CacheGroupSpec, context: GroupContext) -> None:
        super().__init__(spec, context)
        assert spec.window_tokens is not None
        self._window_tokens = spec.window_tokens
        self._tail_blocks = self._blocks_for(spec.window_tokens - 1)
        most_live_tokens = spec.window_tokens - 1 + context.max_tokens_in_flight
        self._most_live_blocks = self._blocks_for(min(most_live_tokens, context.max_model_len)) + 1

    def find_hit(self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock) -> BlockTables:
        num_blocks = min(num_tokens // self.block_size, len(keys[0]))
        tables = [[NULL_BLOCK] * num_blocks for _ in keys]
        run = end = 0
        for index in range(num_blocks - 1, -1, -1):
            blocks = [block for group_keys in keys if (block := find(group_keys[index])) is not None]
            if len(blocks) < len(keys):
                run = 0
                continue
            if run == 0:
                if (index + 1) * self.block_size % self._context.alignment_tokens:
                    continue
                end = index + 1
            for table, block in zip(tables, blocks, strict=True):
                table[index] = block
            run += 1
            if run >= self._tail_blocks:
                break
        if run == 0:
            return [[] for _ in keys]
        start = end - run
        return [[NULL_BLOCK] * start + table[start:end] for table in tables]

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self._window_tokens + 1) // self.block_size

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        end = (index + 1) * self.block_size
        tail_tokens = self._tail_blocks * self.block_size
        interval = self._context.retention_interval
        if interval != 0:
            unit = self._context.alignment_tokens if interval is None else interval
            boundaries = [*boundaries, -(-end // unit) * unit]
        return any(boundary - tail_tokens < end <= boundary for boundary in boundaries)


class ChunkedLocalGroup(CacheGroup):
    """Layers that look at earlier tokens of the same chunk of ``window_tokens`` only; older chunks are let go.

    So all chunks before that of the next token count as hit, whether anything of them is cached or not.
    """

    forgets = True

    def __init__(self, spec: CacheGroupSpec, context: GroupContext) -> None:
        super().__init__(spec, context)
        assert spec.window_tokens is not None
        self._chunk_tokens = spec.window_tokens
        most_live_tokens = spec.window_tokens + context.max_tokens_in_flight
        self._most_live_blocks = self._blocks_for(min(most_live_tokens, context.max_model_len))

    def find_hit(self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock) -> BlockTables:
        start = self.num_dead_blocks(num_tokens)
        tables = _leading_blocks(keys, start, num_tokens // self.block_size, find)
        return [[NULL_BLOCK] * start + table for table in tables]

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        return num_computed_tokens // self._chunk_tokens * self._chunk_tokens // self.block_size


def _leading_blocks(keys: Sequence[Sequence[int]], start: int, end: int, find: FindBlock) -> BlockTables:
    """Blocks that cache keys ``start`` to ``end`` of every group, up to the first that some group has not."""
    if len(keys) == 1:  # the same as below, for speed
        table: list[int] = []
        for key in islice(keys[0], start, end):
            block = find(key)
            if block is None:
                break
            table.append(block)
        return [table]
    tables: BlockTables = [[] for _ in keys]
    for group_keys in zip(*(group_keys[start:end] for group_keys in keys), strict=True):
        blocks = [block for block in map(find, group_keys) if block is not None]
        if len(blocks) < len(keys):
            break
        for table, block in zip(tables, blocks, strict=True):
            table.append(block)
    return tables


_KINDS: dict[str, type[CacheGroup]] = {
    "full_attention": FullAttentionGroup,
    "sliding_window": SlidingWindowGroup,
    "chunked_local_attention": ChunkedLocalGroup,
}


def make_group(spec: CacheGroupSpec, context: GroupContext) -> CacheGroup:
    """The group that ``spec`` describes. Raises ValueError for an unknown kind."""
    if spec.kind not in _KINDS:
        raise ValueError(f"cache group: expected one of {', '.join(_KINDS)}, got {spec.kind}")
    return _KINDS[spec.kind](spec, context)
