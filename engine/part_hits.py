"""Hits that end inside a block: the request goes on in a copy of it (specification, section 10.17)."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.cache_groups import CacheGroup, Span, StateSpaceGroup
from kvtwin.engine.executor import BlockCopy
from kvtwin.engine.multi_key_pool import MultiKeyPool
from kvtwin.engine.request import Request


class PartHits:
    """Whose next allocation copies a block, and the copies that the step being decided carries out.

    A request that hit a part of a block writes into a copy of it. One that gave its own newest state a key goes on in
    the same block, and the key moves to a copy. What is copied and what it is copied to stay held until the step is
    decided.
    """

    def __init__(self, pool: MultiKeyPool, groups: Sequence[CacheGroup]) -> None:
        self.pool = pool
        self._groups = groups
        self._kept: dict[tuple[Request, int], tuple[int, int]] = {}
        """Position and block of the state that a request and group will lose from the cache if they are not copied."""
        self._copies: list[BlockCopy] = []

    def keep(self, request: Request, group_index: int, position: int, block: int) -> None:
        """``block``, in which ``request`` goes on, has a key: copy it before that."""
        self._kept[request, group_index] = position, block
        request.num_registered_blocks[group_index] = position
        request.num_slots = 0  # so that the next allocation is looked at

    def let_go(self, request: Request) -> None:
        """``request`` loses its tables."""
        for index in range(len(self._groups)):
            self._kept.pop((request, index), None)

    def is_copied(self, request: Request, group_index: int, span: Span, table: Sequence[int]) -> bool:
        """Whether the allocation of ``span`` copies a block of ``table``."""
        if span.is_admission:
            group = self._groups[group_index]
            return group.hits_parts and bool(table) and span.start % group.block_size > 0
        return (request, group_index) in self._kept

    def copy(self, request: Request, group_index: int, span: Span, table: list[int]) -> list[int]:
        """Take the block and order the copy that the allocation of ``span`` makes, if any.

        Returned is the block, if the request has it in ``table`` from now on.
        """
        if not self.is_copied(request, group_index, span, table):
            return []
        (copy,) = self.pool.allocate(1)
        if span.is_admission:
            position = span.start // self._groups[group_index].block_size
            source, table[position] = table[position], copy
            self.pool.ref_counts[copy] += 1
        else:
            _, source = self._kept.pop((request, group_index))
            self.pool.move_keys(source, copy)
            self.pool.ref_counts[source] += 1
            group = self._groups[group_index]
            assert isinstance(group, StateSpaceGroup)
            group.unwritten.add(self.pool.keys[copy])
        self._copies.append(BlockCopy(group_index, source, copy))
        return [copy] if span.is_admission else []

    def take_copies(self) -> list[BlockCopy]:
        """The copies of the step that was decided, in its groups' order; what is held for them is let go."""
        copies = sorted(self._copies, key=lambda copy: copy.group_index)
        self._copies.clear()
        self.pool.free([block for copy in copies for block in (copy.source, copy.destination)])
        return copies
