"""The eviction policy ``lru`` of vLLM 0.33's native offloading."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from kvtwin.engine.connectors.native.chunks import Chunk, RequestAccess

_FEW = 64
"""Heaps of fewer entries are never cleaned up."""


class LeastRecentlyUsed:
    """Chunks ordered by their last use; of what one request used together, the deepest goes first.

    While a request lives, what it sees has the request's own rank, and within it the deepest first. When it ends, its
    chunks get new ranks of their own, again the deepest first. Reading and writing do not count as use.
    (tests/connectors/test_native_store.py compares all of it with vLLM's.)

    Invariants (checked by :mod:`kvtwin.engine.connectors.native.invariants`): every chunk has a rank, no two the same;
    ``_idle`` are the keys of chunks that nobody reads or writes; the heap has an entry with the current rank of each.
    """

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._ranks: dict[int, tuple[int, int]] = {}
        self._idle: set[int] = set()
        self._heap: list[tuple[tuple[int, int], int]] = []
        """Ranks and keys; entries whose key has another rank by now, or is not idle, mean nothing."""
        self._last_rank = 0

    def __contains__(self, key: int) -> bool:
        return key in self._chunks

    def get(self, key: int) -> Chunk | None:
        return self._chunks.get(key)

    def insert(self, key: int, chunk: Chunk, access: RequestAccess) -> None:
        self._chunks[key] = chunk
        self._ranks[key] = self._rank_of(access), -access.positions[key]

    def missed(self, keys: Sequence[int]) -> None:
        """Nothing is learnt from it."""

    def accessed(self, keys: Sequence[int], access: RequestAccess) -> None:
        request_rank = self._rank_of(access)
        for key in keys:
            if key in self._chunks:
                rank = request_rank, -access.positions[key]
                if self._ranks[key] < rank:
                    self._set_rank(key, rank)

    def finished(self, access: RequestAccess) -> None:
        for key in reversed(access.seen_in_order()):
            if key in self._chunks:
                self._set_rank(key, (self._next_rank(), 0))

    def pinned(self, key: int) -> None:
        self._idle.remove(key)

    def released(self, key: int) -> None:
        self._idle.add(key)
        self._push(key)

    def evict(self, number: int, kept: set[int]) -> list[Chunk] | None:
        if number > len(self._idle) - len(self._idle & kept):
            return None
        evicted: list[Chunk] = []
        passed_over = []
        while len(evicted) < number:
            entry = rank, key = heappop(self._heap)
            if key not in self._idle or self._ranks[key] != rank:
                continue
            if key in kept:
                passed_over.append(entry)
                continue
            self._idle.remove(key)
            del self._ranks[key]
            evicted.append(self._chunks.pop(key))
        for entry in passed_over:
            heappush(self._heap, entry)
        return evicted

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]

    def chunks(self) -> dict[int, Chunk]:
        return self._chunks

    def idle_keys(self) -> Iterable[int]:
        """Keys of the chunks that may be evicted, the next first."""
        return sorted(self._idle, key=self._ranks.__getitem__)

    def _rank_of(self, access: RequestAccess) -> int:
        if not access.rank:
            access.rank = self._next_rank()
        return access.rank

    def _next_rank(self) -> int:
        self._last_rank += 1
        return self._last_rank

    def _set_rank(self, key: int, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        if key in self._idle:
            self._push(key)

    def _push(self, key: int) -> None:
        heappush(self._heap, (self._ranks[key], key))
        if len(self._heap) > max(_FEW, 2 * len(self._idle)):
            self._heap = [(self._ranks[key], key) for key in self._idle]
            heapify(self._heap)
