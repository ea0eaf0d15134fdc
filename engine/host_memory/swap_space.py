"""Swapping: a preempted request's computed tokens wait in the host, so that nothing is computed twice.

Swapping is older vLLM's (``--preemption-mode swap``, gone since V1); vLLM 0.33 recomputes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.cache_groups import CacheGroup, FindBlock
from kvtwin.engine.host_memory.host_pool import HostLoad, HostPool
from kvtwin.engine.multi_key_pool import MultiKeyPool
from kvtwin.engine.request import BlockTables, Request


@dataclass(frozen=True, slots=True)
class _Swapped:
    """What a preempted request had."""

    num_tokens: int
    """Tokens computed by the steps up to its preemption."""
    blocks: list[HostLoad]
    """Its live blocks, of all groups."""
    table_lengths: list[int]
    num_registered_blocks: list[int]


class SwapSpace:
    """The host blocks of requests that were preempted and will continue.

    All of a request's blocks that hold computed tokens are saved, or none. Only tokens of steps decided before count:
    where a request loses its place in the step being decided, that step's tokens are not saved.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): only preempted requests own host blocks, each its own.
    """

    def __init__(self, num_blocks: int, groups: Sequence[CacheGroup], device_pool: BlockPool) -> None:
        self.pool = HostPool(num_blocks)
        self.num_fallbacks = 0
        """Preemptions for which the host had no room: they recompute."""
        self._groups = groups
        self._device_pool = device_pool
        self._swapped: dict[Request, _Swapped] = {}

    def __contains__(self, request: Request) -> bool:
        return request in self._swapped

    def save(self, request: Request) -> None:
        """Save the blocks of ``request``, which is about to lose them, if there is room for all."""
        num_tokens = request.num_computed_tokens
        places, table_lengths = [], []
        for index, (group, table) in enumerate(zip(self._groups, request.block_tables, strict=True)):
            start = group.num_dead_blocks(num_tokens - request.num_tokens_in_flight)
            end = -(-num_tokens // group.block_size)
            places += [(index, position) for position in range(start, end) if table[position] != NULL_BLOCK]
            table_lengths.append(end)
        device_blocks = [request.block_tables[index][position] for index, position in places]
        host_blocks = self.pool.save(device_blocks)
        if host_blocks is None:
            self.num_fallbacks += 1
            return
        registered = [
            min(number, num_tokens // group.block_size)  # the step being decided may have registered more
            for number, group in zip(request.num_registered_blocks, self._groups, strict=True)
        ]
        blocks = [
            HostLoad(index, position, host_block, self._key(index, position, device_block, registered[index]))
            for (index, position), host_block, device_block in zip(places, host_blocks, device_blocks, strict=True)
        ]
        self._swapped[request] = _Swapped(num_tokens, blocks, table_lengths, registered)

    def _key(self, group_index: int, position: int, block: int, num_registered_blocks: int) -> int:
        """The key of ``block``, if it is the one of its place: a checkpoint of states has that of another prefix."""
        pool, end = self._device_pool, (position + 1) * self._groups[group_index].block_size
        if position >= num_registered_blocks or (isinstance(pool, MultiKeyPool) and pool.prefix_tokens(block) != end):
            return NO_KEY
        return pool.keys[block]

    def find(self, request: Request, find: FindBlock) -> tuple[BlockTables, int, list[HostLoad]]:
        """Tables of a swapped request with what the device still caches, its computed tokens, and what to load.

        At least one known token is left to compute: drafts that were computed may have been rejected since.
        """
        swapped = self._swapped[request]
        tables = [[NULL_BLOCK] * length for length in swapped.table_lengths]
        loads = []
        for place in swapped.blocks:
            block = find(place.key) if place.key != NO_KEY else None
            if block is None:
                loads.append(place)
            else:
                tables[place.group_index][place.position] = block
        return tables, min(swapped.num_tokens, request.num_tokens - 1), loads

    def restore(self, request: Request, loads: Sequence[HostLoad], device_blocks: Sequence[int]) -> list[int]:
        """Copy ``loads`` to ``device_blocks`` and let go of the rest; per group, how many blocks had their key."""
        for place, block in zip(loads, device_blocks, strict=True):
            self.pool.load(place.host_block, block)
        registered = self._swapped[request].num_registered_blocks
        self.drop(request)
        return registered

    def drop(self, request: Request) -> None:
        """Let go of what ``request`` has in the host, if anything."""
        swapped = self._swapped.pop(request, None)
        if swapped:
            self.pool.free([place.host_block for place in swapped.blocks])

    def clear(self) -> None:
        """Let go of everything: the contents are stale."""
        for request in list(self._swapped):
            self.drop(request)

    def owned_blocks(self) -> Iterable[tuple[Request, list[int]]]:
        """Every swapped request with its host blocks."""
        for request, swapped in self._swapped.items():
            yield request, [place.host_block for place in swapped.blocks]
