"""In which order SGLang tries waiting requests (``--schedule-policy``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from kvtwin.engine.request import Request
from kvtwin.engine.sglang.eviction import EVICTION_POLICIES
from kvtwin.engine.sglang.radix_cache import RadixCache
from kvtwin.engine.sglang.radix_tree import RadixTree

MOST_MATCHED = 128
"""Waiting requests that are looked up in one pass."""
_TOUCH_PASSES = 32
_SMALL_HIT_TOKENS = 32
_SHARED_TOKENS = 32


class SchedulePolicy(Protocol):
    """Sorts the queue before each pass over it."""

    def sort(self, waiting: list[Request]) -> None:
        """Put ``waiting`` into the order in which they are tried."""


class FirstComeFirstServed:
    """``fcfs``, the default. Retracted requests stand at the end.

    Every 32nd pass touches what is cached of the first 128, the first in the queue last, so that ``lru`` evicts the
    prefixes of those who will run soon after others; other eviction policies are left alone.
    """

    def __init__(self, cache: RadixCache, eviction_policy: str) -> None:
        self._cache = cache
        self._touches = eviction_policy == "lru"
        self._num_passes = 0

    def sort(self, waiting: list[Request]) -> None:
        if self._touches and waiting:
            if self._num_passes % _TOUCH_PASSES == 0:
                for request in reversed(waiting[:MOST_MATCHED]):
                    self._cache.touch(request)
            self._num_passes += 1


class LongestPrefixMatch:
    """``lpm``: the longest cached prefix first; as ``fcfs`` while more than 128 wait.

    Of several that hit little but share a prefix with each other, the first is computed and the others go last, to hit
    it later. What they share is counted in whole pages; SGLang counts tokens there.
    """

    def __init__(self, cache: RadixCache, eviction_policy: str) -> None:
        self._cache = cache
        self._otherwise = FirstComeFirstServed(cache, eviction_policy)

    def sort(self, waiting: list[Request]) -> None:
        if len(waiting) > MOST_MATCHED:
            self._otherwise.sort(waiting)
            return
        seen = RadixTree(EVICTION_POLICIES["lru"])
        ranks: dict[Request, float] = {}
        for request in waiting:
            names = self._cache.names(request, request.num_tokens)
            node = self._cache.tree.match(names)
            num_hit_tokens = sum(len(one.names) for one in node.path()) * self._cache.page_tokens
            ranks[request] = -min(num_hit_tokens, request.num_tokens - 1)
            if num_hit_tokens <= _SMALL_HIT_TOKENS:
                if seen.num_cached(names) * self._cache.page_tokens >= _SHARED_TOKENS:
                    ranks[request] = float("inf")
                else:
                    seen.insert(names, names)
        waiting.sort(key=ranks.__getitem__)


SCHEDULE_POLICIES: Mapping[str, Callable[[RadixCache, str], SchedulePolicy]] = {
    "fcfs": FirstComeFirstServed,
    "lpm": LongestPrefixMatch,
}
