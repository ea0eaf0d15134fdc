"""The hits of a prefix cache that knows the future: what no eviction policy can beat.

Belady's rule (IBM Systems Journal 1966): evict the block whose next use is furthest away, and do not keep what is never
used again. Blocks of a request with the same next use are taken as one stretch; of equal next uses the deepest goes
first. That running requests hold blocks is left out, so it is an upper bound.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from kvtwin.workloads.prefixes.chains import Chain

_Stretch = tuple[int, int, int]
"""First block, blocks, and the request that uses them next."""


class OptimalEviction:
    """Hits of a stream of chains under clairvoyant eviction, at any capacity."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self._max_hit_blocks = [chain.max_hit_blocks for chain in chains]
        self._kept = _next_uses(chains)

    def hit_blocks(self, capacity_blocks: int) -> int:
        """Hits of a cache of so many blocks."""
        num_hits = num_cached = 0
        cached: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # next use -> heap of (-first, blocks)
        furthest: list[int] = []  # heap of negative next uses, some of them over
        for request, kept in enumerate(self._kept):
            found = sum(count for _, count in cached.pop(request, ()))
            num_hits += min(found, self._max_hit_blocks[request])
            num_cached -= found
            for first, count, user in kept:
                if user not in cached:
                    heapq.heappush(furthest, -user)
                heapq.heappush(cached[user], (-first, count))
                num_cached += count
            while num_cached > capacity_blocks:
                user = -furthest[0]
                stretches = cached.get(user)
                if not stretches:
                    cached.pop(user, None)
                    heapq.heappop(furthest)
                    continue
                minus_first, count = stretches[0]
                surplus = num_cached - capacity_blocks
                if count <= surplus:
                    heapq.heappop(stretches)
                    num_cached -= count
                else:
                    heapq.heapreplace(stretches, (minus_first, count - surplus))
                    num_cached -= surplus
        return num_hits


def _next_uses(chains: Sequence[Chain]) -> list[list[_Stretch]]:
    """Per request the stretches of its chain that some later request uses, with that request."""
    users_of: dict[int, list[tuple[int, int]]] = {}  # run -> staircase of (end, next user), nearest user first
    kept: list[list[_Stretch]] = []
    for request in range(len(chains) - 1, -1, -1):
        stretches: list[_Stretch] = []
        first = 0
        for name, count in chains[request].runs:
            start, left = 0, [(count, request)]
            for end, user in users_of.get(name, ()):
                if start < count:
                    length = min(end, count) - start
                    if stretches and stretches[-1][2] == user:
                        before = stretches[-1]
                        stretches[-1] = (before[0], before[1] + length, user)
                    else:
                        stretches.append((first + start, length, user))
                if end > count:
                    left.append((end, user))
                start = end
            users_of[name] = left
            first += count
        kept.append(stretches)
    kept.reverse()
    return kept
