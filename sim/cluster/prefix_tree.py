"""What a router remembers of the prompts that it sent to one replica: a tree, whose oldest leaves it forgets."""

from __future__ import annotations

from kvtwin.workloads.prefixes.chains import Run


class PrefixTree:
    """The prompts of one replica, in units of tokens or of blocks.

    Each prompt owns the part of the tree that no later prompt touched again, which is always its end. When the tree is
    cut, whole such parts go, the least recently used first.
    """

    def __init__(self) -> None:
        self.size = 0
        """Units in the tree, each once."""
        self._stairs: dict[int, list[tuple[int, int]]] = {}
        """Per run ``[(end, owner), ...]``, the latest owner first: who touches a run touches it from its start."""
        self._owned: dict[int, int] = {}
        """Units of each owner that has any, in the order in which they came."""
        self._runs: dict[int, list[Run]] = {}
        self._next_owner = 0
        self._reached: dict[int, list[tuple[int, int]]] = {}
        """Per run ``[(end, number), ...]``: at which prompt, by its number, it first reached so far."""

    def num_matched(self, runs: list[Run]) -> int:
        """Leading units of ``runs`` that are in the tree."""
        matched = 0
        for name, count in runs:
            stairs = self._stairs.get(name)
            known = min(stairs[-1][0], count) if stairs else 0
            matched += known
            if known < count:
                break
        return matched

    def first_sent(self, runs: list[Run]) -> int:
        """The number of the prompt that first had all units that :meth:`num_matched` counts; -1 if that is none."""
        first = -1
        for name, count in runs:
            reached = self._reached.get(name)
            if not reached:
                break
            known = min(reached[-1][0], count)
            first = next(number for end, number in reached if end >= known)
            if known < count:
                break
        return first

    def insert(self, runs: list[Run], num_private_units: int, number: int = 0) -> None:
        """Prompt ``number`` was sent: all its units are the most recently used ones."""
        owner, self._next_owner = self._next_owner, self._next_owner + 1
        units = num_private_units
        for name, count in runs:
            start, left = 0, [(count, owner)]
            for end, who in self._stairs.get(name, ()):
                self._add(who, -max(0, min(end, count) - start))
                if end > count:
                    left.append((end, who))
                start = end
            self._stairs[name] = left
            units += count
            reached = self._reached.setdefault(name, [])
            if not reached or reached[-1][0] < count:
                reached.append((count, number))
        self._add(owner, units)
        if units:
            self._runs[owner] = runs

    def cut(self, most_units: int) -> None:
        """Forget the least recently used ends of prompts until there are at most ``most_units``."""
        while self.size > most_units:
            self._forget(next(iter(self._owned)))

    def _forget(self, owner: int) -> None:
        for name, _ in self._runs.pop(owner):
            stairs = [step for step in self._stairs[name] if step[1] != owner]
            if stairs:
                self._stairs[name] = stairs
                self._shorten(name, stairs[-1][0])
            else:
                del self._stairs[name], self._reached[name]
        self.size -= self._owned.pop(owner)

    def _shorten(self, name: int, end: int) -> None:
        """Nothing behind ``end`` is left of a run."""
        reached = self._reached[name]
        while reached[-1][0] > end:
            last = reached.pop()
            if not reached or reached[-1][0] < end:
                reached.append((end, last[1]))

    def _add(self, owner: int, units: int) -> None:
        if not units:
            return
        self.size += units
        self._owned[owner] = self._owned.get(owner, 0) + units
        if not self._owned[owner]:
            del self._owned[owner], self._runs[owner]
