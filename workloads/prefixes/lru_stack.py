"""Which request used each cached block last, and how many blocks a cache must hold to have it still (stack distances).

vLLM evicts the block that was freed longest ago, and of one request the deepest first. So the cache is an LRU stack in
which every past request owns one contiguous stretch of its chain: what later requests did not touch again. The stack
distances inside such a stretch are consecutive integers, and one query per stretch replaces one per block (Mattson et
al., IBM Systems Journal 1970, applied to stretches). A block is hit at a capacity if its distance is not greater.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvtwin.workloads.prefixes.chains import Chain, Run


class Stretch(NamedTuple):
    """Consecutive blocks of a chain that the same earlier request used last."""

    owner: int
    num_blocks: int
    distance: int
    """Stack distance of the first block, from 1 on; 0 while the owner still holds it."""


class LruStack:
    """Owners are numbered as they come. They hold their blocks until they let go: then the blocks are the newest.

    Per run the owners are a staircase ``[(end, owner), ...]``, newest first: who touches a run touches it from its
    start, so a later owner's blocks come first.
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        """Blocks ever seen, each once."""
        self._stairs: dict[int, list[tuple[int, int]]] = {}
        self._held: dict[int, int] = {}
        """Blocks of each owner that did not let go yet, without those that a later one holds as well."""
        self._places: list[int] = []
        """Of each owner, where it stands in the order of letting go."""
        self._tree = [0]
        """Fenwick tree over the blocks, in that order."""

    def touch(self, chain: Chain) -> list[Stretch]:
        """As if a request did all at once: what of its chain was seen before, in order."""
        stretches = self.hold(chain)
        self.let_go(len(self._places) - 1, chain)
        return stretches

    def hold(self, chain: Chain) -> list[Stretch]:
        """The next owner takes ``chain``; return what of it was seen before, in order."""
        owner = len(self._places)
        found = _merged(self._take_over(chain.runs, owner))
        stretches = [Stretch(who, length, self._distance(who)) for who, length in found]
        for who, length in found:
            self._add(who, -length)
        num_blocks = sum(count for _, count in chain.runs) + chain.num_private_blocks
        self.num_blocks += num_blocks - sum(length for _, length in found)
        self._places.append(-1)
        self._held[owner] = num_blocks
        return stretches

    def let_go(self, owner: int, chain: Chain) -> None:
        """``owner`` frees its ``chain``; what others hold as well stays theirs."""
        if owner != len(self._places) - 1:
            for who, length in _merged(self._take_back(chain.runs, owner)):
                self._add(who, -length)
                self._add(owner, length)
        self._places[owner] = len(self._tree)
        self._append(self._held.pop(owner))

    def num_seen(self, name: int) -> int:
        """Most blocks of the run that any owner had."""
        stairs = self._stairs.get(name)
        return stairs[-1][0] if stairs else 0

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

    def _take_back(self, runs: list[Run], request: int) -> Iterator[tuple[int, int]]:
        """Yield (owner, blocks) of what others used in between and let go before ``request``, which owns it again."""
        held = self._held
        for name, count in runs:
            stairs = self._stairs[name]
            if stairs[0][1] == request:
                continue
            start, left = 0, []
            for end, owner in stairs:
                mine = start < count and owner not in held
                if mine and owner != request:
                    yield owner, min(end, count) - start
                if mine and left and left[-1][1] == request:
                    left.pop()
                left.append((min(end, count), request) if mine else (end, owner))
                if mine and end > count:
                    left.append((end, owner))
                start = end
            self._stairs[name] = left

    def _distance(self, owner: int) -> int:
        """Stack distance of the newest block of ``owner``: all held blocks are newer."""
        if owner in self._held:
            return 0
        newer, index = self.num_blocks, self._places[owner]
        while index:
            newer -= self._tree[index]
            index &= index - 1
        return newer + 1

    def _add(self, owner: int, num_blocks: int) -> None:
        if owner in self._held:
            self._held[owner] += num_blocks
            return
        index = self._places[owner]
        while index < len(self._tree):
            self._tree[index] += num_blocks
            index += index & -index

    def _append(self, num_blocks: int) -> None:
        index = len(self._tree)
        lowest, part = index & (index - 1), index - 1
        while part > lowest:
            num_blocks += self._tree[part]
            part &= part - 1
        self._tree.append(num_blocks)


def _merged(stretches: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for owner, length in stretches:
        if merged and merged[-1][0] == owner:
            merged[-1] = (owner, merged[-1][1] + length)
        else:
            merged.append((owner, length))
    return merged
