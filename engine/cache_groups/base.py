"""What every kind of cache group has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from kvtwin.engine.block_pool import KeyMap
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.request import BlockTables
from kvtwin.engine.settings import EngineSettings

FindBlock = Callable[[int], int | None]
"""The block that caches a key, None if there is none."""

_AT_ONCE = 64
"""Keys that are looked up together where it is not known how many will be needed."""


class CacheGroup(ABC):
    """One table per request; position ``i`` of it stands for tokens ``i * block_size`` onwards."""

    has_window = False
    """Whether the specification says ``window_tokens``."""
    caches_parts = False
    """Whether a part of a block is cached as well, where a hash covers less than a block."""
    forgets = False
    """Whether blocks are let go while the request runs."""
    hits_wait_a_step = False
    """Whether a block cannot be hit yet in the step that registers it."""

    def __init__(self, spec: CacheGroupSpec, settings: EngineSettings) -> None:
        self.spec = spec
        self.num_dropped_blocks = int(settings.drops_last_block(spec))
        """Blocks at the end of a cached prefix that a hit gives away (1 for drafters that need it, else 0)."""
        self.kind = spec.kind
        self.block_size = spec.block_size
        self.window_tokens = spec.window_tokens or 0
        self.alignment_tokens = settings.alignment_tokens
        """Hits are multiples of this."""
        self.alignment_blocks = settings.alignment_tokens // spec.block_size
        self._settings = settings

    @abstractmethod
    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> BlockTables:
        """Tables of the longest cached prefix of at most ``num_tokens`` tokens, for all groups of this kind.

        ``keys`` holds, per group, the keys of the prompt's blocks; a prefix counts only if every group has it. Hits
        are aligned, and without the last ``num_dropped_blocks``. Positions that the group does not need any more hold
        the null block.
        """

    def blocks_to_add(self, num_slots: int, num_held_blocks: int) -> int:
        """Blocks missing from a table of ``num_held_blocks`` to have ``num_slots`` token slots."""
        return max(0, self._blocks_for(num_slots) - num_held_blocks)

    def blocks_to_admit(self, num_tokens: int, num_held_blocks: int) -> int:
        """Blocks missing to admit a request whole that has ``num_tokens`` known tokens (specification, section 4.2)."""
        return max(0, self._blocks_at_once(num_tokens, self._settings.max_tokens_in_flight) - num_held_blocks)

    def most_blocks(self, num_slots: int) -> int:
        """Most blocks that a request holds at once until it has ``num_slots`` token slots."""
        return self._blocks_at_once(num_slots, self._settings.max_slots_ahead)

    def _blocks_at_once(self, num_slots: int, num_slots_ahead: int) -> int:
        """Most blocks of a table of ``num_slots`` slots that are needed at once.

        So many slots at most lie ahead of the last token whose step is done; only groups that forget care.
        """
        return self._blocks_for(num_slots)

    def positions_to_skip(self, num_slots: int, num_held_blocks: int) -> int:
        """Positions that get no block, before those that do, when a table is extended to ``num_slots`` token slots."""
        return 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no later token looks at."""
        return 0

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        """Whether full block ``index`` is given its key; ``boundaries`` are prefix lengths worth resending."""
        return True


def leading_blocks(keys: Sequence[Sequence[int]], start: int, end: int, find: FindBlock) -> BlockTables:
    """Blocks that cache keys ``start`` to ``end`` of every group, up to the first that some group has not."""
    if len(keys) == 1 and isinstance(find, KeyMap):  # the same as below, for speed
        return [find.leading(keys[0][start:end] if start else keys[0], end - start)]
    tables: BlockTables = [[] for _ in keys]
    for group_keys in zip(*(group_keys[start:end] for group_keys in keys), strict=True):
        blocks = [block for block in map(find, group_keys) if block is not None]
        if len(blocks) < len(keys):
            break
        for table, block in zip(tables, blocks, strict=True):
            table.append(block)
    return tables


def blocks_backwards(keys: Sequence[int], end: int, find: FindBlock) -> Iterator[int | None]:
    """The block that caches each of the first ``end`` keys, the last of them first."""
    if not isinstance(find, KeyMap):
        yield from map(find, reversed(keys[:end]))
        return
    for behind in range(end, 0, -_AT_ONCE):
        yield from reversed(find.all(keys[max(0, behind - _AT_ONCE) : behind]))
