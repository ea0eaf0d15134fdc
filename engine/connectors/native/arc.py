"""The eviction policy ``arc`` of vLLM 0.33's native offloading: an adaptive replacement cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvtwin.engine.connectors.native.chunks import Chunk, RequestAccess


class AdaptiveReplacement:
    """Chunks stored once beside chunks that were used again, and the memory of what either part lost.

    A key offered again soon after it was lost says which part is too small. ``_target`` is the size that the first part
    should have. (tests/connectors/test_native_store.py compares all of it with vLLM's.)

    Invariants (checked by :mod:`kvtwin.engine.connectors.native.invariants`): no key is in both parts, nor in a part
    and among what was lost; ``0 <= _target <= capacity``.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0
        self._once: OrderedDict[int, Chunk] = OrderedDict()
        self._again: OrderedDict[int, Chunk] = OrderedDict()
        self._lost_once: OrderedDict[int, None] = OrderedDict()
        self._lost_again: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, key: int) -> bool:
        return key in self._once or key in self._again

    def get(self, key: int) -> Chunk | None:
        return self._once.get(key) or self._again.get(key)

    def insert(self, key: int, chunk: Chunk, access: RequestAccess) -> None:
        self._once[key] = chunk
        self._lost_once.pop(key, None)
        self._lost_again.pop(key, None)

    def missed(self, keys: Sequence[int]) -> None:
        once, again = self._lost_once, self._lost_again
        for key in reversed(keys):
            if key in once:
                self._target = min(self._target + max(1, len(again) / len(once)), self._capacity)
                once.move_to_end(key)
            elif key in again:
                self._target = max(self._target - max(1, len(once) / len(again)), 0)
                again.move_to_end(key)

    def accessed(self, keys: Sequence[int], access: RequestAccess) -> None:
        """Counts only when the request ends."""

    def finished(self, access: RequestAccess) -> None:
        for key in reversed(access.seen_in_order()):
            if key in access.reused:
                if key in self._once:
                    self._again[key] = self._once.pop(key)
                elif key in self._again:
                    self._again.move_to_end(key)
            elif key in access.inserted:
                for part in (self._once, self._again):
                    if key in part:
                        part.move_to_end(key)

    def pinned(self, key: int) -> None:
        """Its chunk says so itself."""

    def released(self, key: int) -> None:
        """Its chunk says so itself."""

    def evict(self, number: int, kept: set[int]) -> list[Chunk] | None:
        once, again = self._candidates(self._once, kept), self._candidates(self._again, kept)
        num_once = len(self._once)
        victims = []
        for _ in range(number):
            order = (once, again) if num_once >= int(self._target) else (again, once)
            part = order[0]
            key = next(part, None)
            if key is None:
                part = order[1]
                key = next(part, None)
            if key is None:
                return None
            num_once -= part is once
            victims.append((key, part is once))
        evicted = []
        for key, is_once in victims:
            evicted.append((self._once if is_once else self._again).pop(key))
            (self._lost_once if is_once else self._lost_again)[key] = None
        for lost in (self._lost_once, self._lost_again):
            while len(lost) > self._capacity:
                lost.popitem(last=False)
        return evicted

    def clear(self) -> None:
        self.__init__(self._capacity)  # type: ignore[misc]

    def chunks(self) -> dict[int, Chunk]:
        return {**self._once, **self._again}

    def check(self, require: Callable[..., None]) -> None:
        """Have ``require`` raise where the invariants do not hold."""
        parts: list[OrderedDict[int, Any]] = [self._once, self._again, self._lost_once, self._lost_again]
        num_keys = sum(len(part) for part in parts)
        require(num_keys == len(set().union(*(part.keys() for part in parts))), "a key is in two parts")
        require(0 <= self._target <= self._capacity, "target {}", self._target)

    @staticmethod
    def _candidates(part: OrderedDict[int, Chunk], kept: set[int]) -> Iterator[int]:
        """The keys of ``part`` that may go, in order. A generator that ended stays so: a part is walked only once."""
        return (key for key, chunk in part.items() if chunk.num_readers == 0 and key not in kept)
