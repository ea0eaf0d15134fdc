"""The range pool: one memory, of which ranges in a row are handed out by best fit."""

from __future__ import annotations

from bisect import bisect_left

from kvtwin.engine.pool_listener import PoolListener


class RangePool:
    """Which of the blocks 1 to ``num_blocks`` - 1 are free, as ranges.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): free ranges are not empty, stand in order of address, and
    no two touch: neighbours are merged at once.
    """

    num_evictions = 0
    """Nothing is cached, so nothing is evicted."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks: expected at least 2 (one is the null block), got {num_blocks}")
        self.num_usable_blocks = num_blocks - 1
        self.num_free_blocks = num_blocks - 1
        """Blocks in all free ranges together."""
        self.listeners: list[PoolListener] = []
        """Who is told what is taken and freed."""
        self._starts = [1]
        self._ends = [num_blocks]

    @property
    def num_used_blocks(self) -> int:
        """Blocks that somebody has."""
        return self.num_usable_blocks - self.num_free_blocks

    def free_ranges(self) -> list[tuple[int, int]]:
        """First block of each free range and the one behind its last, in order of address."""
        return list(zip(self._starts, self._ends, strict=True))

    def take(self, count: int) -> int | None:
        """The first of ``count`` blocks in a row, from the smallest range that has so many, the first of several.

        None, changing nothing, when no range has, however much is free in all.
        """
        best, best_size = -1, self.num_usable_blocks + 1
        for index, start in enumerate(self._starts):
            size = self._ends[index] - start
            if count <= size < best_size:
                best, best_size = index, size
        if best < 0:
            return None
        start = self._starts[best]
        if best_size == count:
            del self._starts[best], self._ends[best]
        else:
            self._starts[best] = start + count
        self.num_free_blocks -= count
        for listener in self.listeners:
            listener.taken(range(start, start + count))
        return start

    def give_back(self, start: int, count: int) -> None:
        """Free ``count`` blocks from ``start`` on, merged with the free ranges beside them.

        Raises ValueError, changing nothing, when some of them are free already or are not the pool's.
        """
        end = start + count
        after = bisect_left(self._starts, start)
        before_end = self._ends[after - 1] if after else 1
        after_start = self._starts[after] if after < len(self._starts) else self.num_usable_blocks + 1
        if not before_end <= start < end <= after_start:
            raise ValueError(f"give_back: blocks {start} to {end - 1} are not all held (freed twice?)")
        joins_before = after > 0 and before_end == start
        joins_after = after < len(self._starts) and after_start == end
        if joins_before and joins_after:
            self._ends[after - 1] = self._ends[after]
            del self._starts[after], self._ends[after]
        elif joins_before:
            self._ends[after - 1] = end
        elif joins_after:
            self._starts[after] = start
        else:
            self._starts.insert(after, start)
            self._ends.insert(after, end)
        self.num_free_blocks += count
        for listener in self.listeners:
            listener.freed(range(start, end))
