"""What every kind of cache group has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kvtwin.engine.block_pool import BlockPool, KeyMap
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.request import BlockTables, Request
from kvtwin.engine.settings import EngineSettings

FindBlock = Callable[[int], int | None]
"""The block that caches a key, None if there is none."""

_AT_ONCE = 64
"""Keys that are looked up together where it is not known how many will be needed."""


class Span(NamedTuple):
    """The tokens of a request that an allocation is for."""

    start: int
    """Tokens computed before, those of a hit among them."""
    end: int
    """Tokens computed then, with drafts that the model verifies."""
    num_slots: int
    """Slots that attention needs then: those that a drafter writes behind ``end``, too."""
    is_admission: bool
    """Whether the request gets its first blocks, beside those of a hit."""


class CacheGroup(ABC):
    """One table per request; position ``i`` of it stands for tokens ``i * block_size`` onwards."""

    has_window = False
    """Whether the specification says ``window_tokens``."""
    forgets = False
    """Whether blocks are let go while the request runs."""

    def __init__(self, spec: CacheGroupSpec, settings: EngineSettings) -> None:
        self.spec = spec
        self.num_dropped_blocks = int(settings.drops_last_block(spec))
        """Blocks at the end of a cached prefix that a hit gives away (1 for drafters that need it, else 0)."""
        self.hits_parts = settings.hits_parts and spec.block_size > settings.hash_block_size
        """Whether hits may end inside a block."""
        self.kind = spec.kind
        self.block_size = spec.block_size
        self.window_tokens = spec.window_tokens or 0
        self.alignment_tokens = settings.alignment_tokens
        """Hits are multiples of this."""
        self.alignment_blocks = settings.alignment_tokens // spec.block_size
        self.margin_tokens = self.num_dropped_blocks * (self.alignment_tokens if self.hits_parts else self.block_size)
        """Tokens behind a hit that must be cached, because the hit gives them away."""
        self._settings = settings

    @abstractmethod
    def find_hit(
        self, keys: Sequence[Sequence[int]], num_tokens: int, find: FindBlock, num_dropped_blocks: int = 0
    ) -> tuple[BlockTables, int]:
        """The longest cached prefix of at most ``num_tokens`` tokens, for all groups of this kind: tables and tokens.

        ``keys`` holds, per group, the keys of the prompt's blocks; a prefix counts only if every group has it. Hits
        are aligned, and without the last ``num_dropped_blocks``. Positions that the group does not need any more hold
        the null block.
        """

    def blocks_to_add(self, request: Request, span: Span, table: Sequence[int]) -> int:
        """Blocks that the ``table`` of ``request`` lacks for ``span``."""
        return max(0, self._blocks_for(span.num_slots) - len(table))

    def blocks_to_admit(self, request: Request, span: Span, table: Sequence[int]) -> int:
        """Blocks that it lacks to admit the request whole, ``span`` being all known tokens (specification, 4.2)."""
        return max(0, self._blocks_at_once(span.num_slots, self._settings.max_tokens_in_flight) - len(table))

    def add_blocks(self, request: Request, span: Span, table: list[int], pool: BlockPool) -> list[int]:
        """Extend ``table`` by what it lacks for ``span``; return what was appended."""
        blocks = pool.allocate(max(0, self._blocks_for(span.num_slots) - len(table)))
        table += blocks
        return blocks

    def num_slots(self, request: Request, table: Sequence[int]) -> int:
        """Slots up to which an allocation has nothing to do with ``table``."""
        return len(table) * self.block_size

    def most_blocks(self, num_slots: int) -> int:
        """Most blocks that a request holds at once until it has ``num_slots`` token slots."""
        return self._blocks_at_once(num_slots, self._settings.max_slots_ahead)

    def _blocks_at_once(self, num_slots: int, num_slots_ahead: int) -> int:
        """Most blocks of a table of ``num_slots`` slots that are needed at once.

        So many slots at most lie ahead of the last token whose step is done; only groups that forget care.
        """
        return self._blocks_for(num_slots)

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_dead_blocks(self, num_computed_tokens: int) -> int:
        """Leading blocks that no later token looks at."""
        return 0

    def num_live_tokens(self, num_computed_tokens: int) -> int:
        """How many of the computed tokens a later one looks at."""
        return num_computed_tokens

    def is_kept(self, index: int, boundaries: Sequence[int]) -> bool:
        """Whether full block ``index`` is given its key; ``boundaries`` are prefix lengths worth resending."""
        return True


def leading_blocks(keys: Sequence[Sequence[int]], start: int, end: int, find: FindBlock) -> BlockTables:
    """Blocks that cache keys ``start`` to ``end`` of every group, up to the first that some group has not."""
    if len(keys) == 1 and isinstance(find, KeyMap):  # the same as below, for speed
        return [find.leading(keys[0][start:end] if start else keys[0], end - start)]
    tables: BlockTables = [[] for _ in keys]
    for group_keys in zip(*(group_keys[start:end] for group_keys in keys), strict=True):
        blocks = find_in_all(group_keys, find)
        if not blocks:
            break
        for table, block in zip(tables, blocks, strict=True):
            table.append(block)
    return tables


def num_leading_blocks(keys: Sequence[int], find: FindBlock) -> int:
    """How many of ``keys`` are cached, up to the first that is not."""
    if isinstance(find, KeyMap):
        return find.num_leading(array("q", keys), len(keys))
    return next((position for position, key in enumerate(keys) if find(key) is None), len(keys))


def find_in_all(keys: Sequence[int], find: FindBlock) -> list[int]:
    """The blocks that cache ``keys``, one for each group; empty if some group has none."""
    blocks = [block for block in map(find, keys) if block is not None]
    return blocks if len(blocks) == len(keys) else []


def blocks_backwards(keys: Sequence[int], end: int, find: FindBlock) -> Iterator[int | None]:
    """The block that caches each of the first ``end`` keys, the last of them first."""
    if not isinstance(find, KeyMap):
        yield from map(find, reversed(keys[:end]))
        return
    for behind in range(end, 0, -_AT_ONCE):
        yield from reversed(find.all(keys[max(0, behind - _AT_ONCE) : behind]))
