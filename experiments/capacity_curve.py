"""The hit rate of a prefix cache at every capacity, from one pass over a trace (stack distances).

vLLM evicts the block that was freed longest ago, and of one request the deepest first. So the cache is an LRU stack in
which every past request owns one contiguous stretch of its chain: what later requests did not touch again. The stack
distances inside such a stretch are consecutive integers, and one query per stretch replaces one per block (Mattson et
al., IBM Systems Journal 1970, applied to stretches). A block is hit at a capacity if its distance is not greater.

What the engine does besides is left out: requests overlap in time, blocks are freed when a request ends, and running
requests may be preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from experiments.prefix_chains import Chain, Run


class CapacityCurve:
    """Hit blocks of a stream of chains, at every capacity in blocks. Blocks of outputs take places as well."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        stack = _Stack(len(chains))
        starts, ends = [], []
        for chain in chains:
            room = chain.max_hit_blocks
            for distance, length in stack.touch(chain):
                counted = min(length, room)
                if counted > 0:
                    starts.append(distance)
                    ends.append(distance + counted)
                room -= length
        self.num_distinct_blocks = stack.num_blocks
        """Blocks that hold everything ever cached: a larger cache hits no more."""
        steps = np.zeros(self.num_distinct_blocks + 2, dtype=np.int64)
        np.add.at(steps, starts, 1)
        np.add.at(steps, ends, -1)
        self._hits: NDArray[np.int64] = np.cumsum(np.cumsum(steps))

    @property
    def most_hit_blocks(self) -> int:
        """Hits of a cache that never evicts."""
        return int(self._hits[-1])

    def hit_blocks(self, capacity_blocks: int) -> int:
        """Hits of a cache of so many blocks."""
        return int(self._hits[min(capacity_blocks, len(self._hits) - 1)])

    def capacity_for(self, share: float) -> int:
        """Fewest blocks with at least this share of the hits that are possible at all."""
        return int(np.searchsorted(self._hits, share * self.most_hit_blocks, side="left"))


class _Stack:
    """Which request touched each block last, and how many blocks later requests own.

    Per run the owners are a staircase ``[(end, owner), ...]``, newest first: who touches a run touches it from its
    start, so a later owner's blocks come first.
    """

    def __init__(self, num_requests: int) -> None:
        self.num_blocks = 0
        self._num_requests = 0
        self._stairs: dict[int, list[tuple[int, int]]] = {}
        self._tree = [0] * (num_requests + 1)  # Fenwick tree over the sizes

    def touch(self, chain: Chain) -> Iterator[tuple[int, int]]:
        """Yield (stack distance of its first block, blocks) of every stretch seen before; then all are the newest."""
        request = self._num_requests
        self._num_requests += 1
        stretches = _merged(self._take_over(chain.runs, request))
        for owner, length in stretches:
            yield self._newer_blocks(owner) + 1, length
        for owner, length in stretches:
            self._add(owner, -length)
            self.num_blocks -= length
        num_own = sum(count for _, count in chain.runs) + chain.num_private_blocks
        self._add(request, num_own)
        self.num_blocks += num_own

    def _take_over(self, runs: list[Run], request: int) -> Iterator[tuple[int, int]]:
        """Yield (owner, blocks) along the chain as far as it was seen before; ``request`` owns it from then on."""
        stairs_of = self._stairs
        for name, count in runs:
            stairs = stairs_of.get(name)
            if stairs is None:
                stairs_of[name] = [(count, request)]
                continue
            if len(stairs) == 1 and stairs[0][0] == count:
                yield stairs[0][1], count
                stairs_of[name] = [(count, request)]
                continue
            start, left = 0, [(count, request)]
            for end, owner in stairs:
                if start < count:
                    yield owner, min(end, count) - start
                if end > count:
                    left.append((end, owner))
                start = end
            stairs_of[name] = left

    def _newer_blocks(self, request: int) -> int:
        """Blocks owned by requests after ``request``."""
        older, index = 0, request + 1
        while index:
            older += self._tree[index]
            index &= index - 1
        return self.num_blocks - older

    def _add(self, request: int, num_blocks: int) -> None:
        index = request + 1
        while index < len(self._tree):
            self._tree[index] += num_blocks
            index += index & -index


def _merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for owner, length in stretches:
        if merged and merged[-1][0] == owner:
            merged[-1] = (owner, merged[-1][1] + length)
        else:
            merged.append((owner, length))
    return merged
