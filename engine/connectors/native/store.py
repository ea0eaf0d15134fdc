"""The host's store of chunks, as vLLM 0.33's native offloading keeps it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from kvtwin.engine.connectors.native.arc import AdaptiveReplacement
from kvtwin.engine.connectors.native.chunks import Chunk, EvictionPolicy, RequestAccess
from kvtwin.engine.connectors.native.lru import LeastRecentlyUsed

EVICTION_POLICIES = ("lru", "arc")


class OfferCounts:
    """How often each key was offered, of the keys offered last: those that were offered often enough are stored."""

    def __init__(self, threshold: int, capacity: int) -> None:
        self._threshold = threshold
        self._capacity = capacity
        self._counts: OrderedDict[int, int] = OrderedDict()

    def record(self, keys: Sequence[int]) -> None:
        """Count one offer of ``keys``: the oldest of the others make room, and what finds none is not counted."""
        counts = self._counts
        known = [key for key in keys if key in counts]
        for key in known:
            counts.move_to_end(key)
            counts[key] += 1
        num_others = len(counts) - len(known)
        for key in keys:
            if key in counts:
                continue
            if len(counts) >= self._capacity:
                if not num_others:
                    continue
                counts.popitem(last=False)
                num_others -= 1
            counts[key] = 1

    def is_enough(self, key: int) -> bool:
        """Whether ``key`` was offered often enough."""
        return self._counts.get(key, 0) >= self._threshold


class ChunkStore:
    """Chunks by key. A key stands for a whole prefix up to the end of a chunk.

    Rules: docs/host-memory.md; tests/connectors/test_native_store.py compares it with vLLM's on random operations.

    Invariants (checked by :mod:`kvtwin.engine.connectors.native.invariants`): every place of ``num_chunks`` is unused,
    free or that of one chunk.
    """

    def __init__(
        self, num_chunks: int, *, policy: str = "lru", store_threshold: int = 0, max_tracker_size: int = 64_000
    ) -> None:
        self.num_chunks = num_chunks
        self.policy: EvictionPolicy = LeastRecentlyUsed() if policy == "lru" else AdaptiveReplacement(num_chunks)
        self.num_evicted_chunks = 0
        self.num_refused_chunks = 0
        """Chunks that were not stored because too few others could go."""
        self.num_used_places = 0
        self.free_places: list[int] = []
        self.generation = 0
        """How often the store was cleared: what requests did before counts no more."""
        self._offers = OfferCounts(store_threshold, max_tracker_size) if store_threshold >= 2 else None
        self._num_idle = 0
        """Chunks that nobody reads or writes."""

    @property
    def num_idle_chunks(self) -> int:
        """Chunks that could be evicted."""
        return self._num_idle

    def find(self, key: int) -> Chunk | None:
        """The chunk under ``key``, whether it is ready or still being written."""
        return self.policy.get(key)

    def pin(self, keys: Collection[int], access: RequestAccess) -> list[int]:
        """Keep the chunks of ``keys``, all ready, for a load; return their places."""
        places = []
        for key in keys:
            chunk = self.policy.get(key)
            assert chunk
            assert chunk.is_ready
            if not chunk.num_readers:
                self.policy.pinned(key)
                self._num_idle -= 1
            chunk.num_readers += 1
            places.append(chunk.index)
        self._record(keys, access, reused=keys)
        return places

    def unpin(self, keys: Collection[int]) -> None:
        """A load of ``keys`` is done."""
        for key in keys:
            chunk = self.policy.get(key)
            assert chunk
            assert chunk.num_readers > 0
            chunk.num_readers -= 1
            if not chunk.num_readers:
                self._num_idle += 1
                self.policy.released(key)

    def offer(self, keys: Sequence[int], access: RequestAccess) -> dict[int, int] | None:
        """Take in those of ``keys`` that are missing and were offered often enough: their places, by key.

        None when they do not fit even without all chunks that could go: then nothing is stored.
        """
        if self._offers:
            self._offers.record(keys)
        missing, ready = [], []
        for key in keys:
            chunk = self.policy.get(key)
            if chunk is None:
                missing.append(key)
            elif chunk.is_ready:
                ready.append(key)
        if self._offers:
            missing = [key for key in missing if self._offers.is_enough(key)]
        first_misses = [key for key in missing if key not in access.missed]
        if first_misses:
            self.policy.missed(first_misses)
            access.missed.update(first_misses)
        counted = {*missing, *ready}
        self._record([key for key in keys if key in counted], access, reused=ready)
        if not missing:
            return {}
        if not self._make_room(len(missing), set(keys)):
            self.num_refused_chunks += len(missing)
            return None
        places = {key: self._take_place() for key in missing}
        for key, place in places.items():
            self.policy.insert(key, Chunk(place), access)
        access.inserted.update(missing)
        return places

    def written(self, keys: Collection[int]) -> None:
        """What was stored under ``keys`` has arrived."""
        for key in keys:
            chunk = self.policy.get(key)
            if chunk and not chunk.is_ready:
                chunk.num_readers = 0
                self._num_idle += 1
                self.policy.released(key)

    def finished(self, access: RequestAccess) -> None:
        """The request of ``access`` has ended and offers nothing more."""
        self.policy.finished(access)

    def clear(self) -> None:
        """Let go of everything, even of what is being read or written."""
        self.policy.clear()
        self.generation += 1
        self._num_idle = 0
        self.num_used_places = 0
        self.free_places.clear()

    def _record(self, keys: Collection[int], access: RequestAccess, reused: Collection[int]) -> None:
        new = [key for key in keys if key not in access.seen]
        if new:
            access.seen.update(new)
            self.policy.accessed(new, access)
        access.reused.update(key for key in reused if key not in access.inserted)

    def _make_room(self, number: int, kept: set[int]) -> bool:
        num_lacking = number - len(self.free_places) - (self.num_chunks - self.num_used_places)
        if num_lacking <= 0:
            return True
        if num_lacking > self._num_idle:
            return False
        evicted = self.policy.evict(num_lacking, kept)
        if evicted is None:
            return False
        self._num_idle -= len(evicted)
        self.num_evicted_chunks += len(evicted)
        self.free_places += [chunk.index for chunk in evicted]
        return True

    def _take_place(self) -> int:
        """A place that was never used, as long as there are some; else the one freed last."""
        if self.num_used_places < self.num_chunks:
            self.num_used_places += 1
            return self.num_used_places - 1
        return self.free_places.pop()
