"""Prefixes that a trace names by ids: every distinct sequence of ids gets places on a line of numbers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple


class Stretch(NamedTuple):
    """Ids of a sequence whose places follow each other."""

    first_id: int
    """How many ids come before."""
    num_ids: int
    place: int
    """Of the first of them."""


class PrefixTree:
    """Gives places to ids: in two sequences those of the ids number ``i`` are the same, if the sequences are up to it.

    Ids that were new together have places that follow each other. So a prompt is a few stretches, as many as there are
    partings on its way, and what is done per stretch need not be done per id.
    """

    def __init__(self) -> None:
        self._next_place = 0
        self._roots: dict[Hashable, _Branch] = {}

    def take(self, num_places: int) -> int:
        """The first of ``num_places`` that no id has or gets."""
        first = self._next_place
        self._next_place += num_places
        return first

    def stretches(self, name: Hashable, ids: Sequence[Hashable], id_places: int) -> list[Stretch]:
        """Where ``ids`` lie, of which each takes ``id_places``, the same for all sequences under one ``name``."""
        branch = self._roots.get(name)
        if branch is None:
            branch = self._roots[name] = _Branch((), 0)
        start, count, found = 0, 0, []
        while start < len(ids):
            following = branch.partings.get((count, ids[start]))
            if following is None:
                following = _Branch(ids[start:], self.take(id_places * (len(ids) - start)))
                branch.partings[count, ids[start]] = following
            branch = following
            count = branch.num_shared(ids, start)
            found.append(Stretch(start, count, branch.place))
            start += count
        return found


class _Branch:
    """Ids that were new together, and the branches that part from them."""

    __slots__ = ("ids", "partings", "place")

    def __init__(self, ids: Sequence[Hashable], place: int) -> None:
        self.ids = ids
        self.place = place
        self.partings: dict[tuple[int, Hashable], _Branch] = {}
        """By how many of the ids come before, and the first id behind them."""

    def num_shared(self, ids: Sequence[Hashable], start: int) -> int:
        """How many of the branch's ids are those of ``ids`` from ``start`` on; the first of them is."""
        most = min(len(self.ids), len(ids) - start)
        others = ids[start : start + most]
        if self.ids[:most] == others:
            return most
        count = 1
        while most - count > 1:  # so many are shared, and not all of the first ``most``
            middle = (count + most) // 2
            if self.ids[count:middle] == others[count:middle]:
                count = middle
            else:
                most = middle
        return count
