"""The hit rate of a prefix cache at every capacity, from one pass over a trace (see `lru_stack` beside this file).

What the engine does besides is left out: requests overlap in time, blocks are freed when a request ends, and running
requests may be preempted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvtwin.workloads.prefixes.chains import Chain
from kvtwin.workloads.prefixes.lru_stack import LruStack


class CapacityCurve:
    """Hit blocks of a stream of chains, at every capacity in blocks. Blocks of outputs take places as well."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        stack = LruStack()
        starts, ends = [], []
        for chain in chains:
            room = chain.max_hit_blocks
            for _, length, distance in stack.touch(chain):
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
