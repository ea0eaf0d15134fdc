"""Which prefixes are worth most: a compressed tree of what was hit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvtwin.workloads.prefixes.chains import Run

_First = tuple[int, str]
"""Number and id of the first request with a hit."""


@dataclass(slots=True)
class _Run:
    """A run that was hit, and how far into it hits went."""

    first_block: int
    parent: int | None
    ends: dict[int, int] = field(default_factory=dict)
    """Hits that end behind so many of its blocks."""
    first_of_end: dict[int, _First] = field(default_factory=dict)


@dataclass(slots=True)
class _Edge:
    """Blocks of prefixes that the same requests hit."""

    start_block: int
    end_block: int
    num_hits: int
    first: _First


class SharedPrefixes:
    """The hits of a stream of requests, as a tree in which a prefix is a node if the hits on it end or part there.

    A token that was hit belongs to the longest such prefix that has it: what all prefixes saved adds up to all hits.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        self._num_hits = 0

    def add(self, runs: list[Run], num_hit_blocks: int, request_id: str) -> None:
        """A request hit the first ``num_hit_blocks`` of ``runs``."""
        first_block, parent = 0, None
        for name, count in runs:
            if num_hit_blocks <= first_block:
                break
            run = self._runs.get(name)
            if run is None:
                run = self._runs[name] = _Run(first_block, parent)
            first_block += count
            parent = name
        if parent is None:
            return
        last = self._runs[parent]
        end = min(num_hit_blocks, first_block) - last.first_block
        last.ends[end] = last.ends.get(end, 0) + 1
        last.first_of_end.setdefault(end, (self._num_hits, request_id))
        self._num_hits += 1

    def add_all(self, other: SharedPrefixes) -> None:
        """Everything that ``other`` counted, as if it had come after all here."""
        for name, run in other._runs.items():
            mine = self._runs.setdefault(name, _Run(run.first_block, run.parent))
            for end, num_hits in run.ends.items():
                mine.ends[end] = mine.ends.get(end, 0) + num_hits
                number, request_id = run.first_of_end[end]
                mine.first_of_end.setdefault(end, (self._num_hits + number, request_id))
        self._num_hits += other._num_hits

    def top(self, number: int, block_size: int) -> list[dict[str, Any]]:
        """The ``number`` prefixes that saved most tokens: where they end, where the shorter one ended, who hit them."""
        edges = sorted(
            self._edges(), key=lambda edge: (edge.num_hits * (edge.start_block - edge.end_block), edge.first)
        )
        return [
            {
                "prefix_tokens": edge.end_block * block_size,
                "counted_from_token": edge.start_block * block_size,
                "requests": edge.num_hits,
                "saved_tokens": (edge.end_block - edge.start_block) * edge.num_hits * block_size,
                "first_request_id": edge.first[1],
            }
            for edge in edges[:number]
        ]

    def _edges(self) -> list[_Edge]:
        done: list[_Edge] = []
        behind: dict[int | None, list[_Edge]] = {}  # edges of the runs that follow a run
        for name, run in sorted(self._runs.items(), key=lambda item: -item[1].first_block):
            followers: dict[int, list[_Edge]] = {}
            for edge in behind.pop(name, ()):
                followers.setdefault(edge.start_block - run.first_block, []).append(edge)
            edge = None
            for end in sorted({*run.ends, *followers}, reverse=True):
                deeper = followers.get(end, []) + ([edge] if edge else [])
                num_hits = run.ends.get(end, 0) + sum(other.num_hits for other in deeper)
                if len(deeper) == 1 and deeper[0].num_hits == num_hits:
                    edge = deeper[0]
                else:
                    for other in deeper:
                        other.start_block = run.first_block + end
                    done += deeper
                    firsts = [other.first for other in deeper]
                    if end in run.first_of_end:
                        firsts.append(run.first_of_end[end])
                    edge = _Edge(0, run.first_block + end, num_hits, min(firsts))
            assert edge is not None
            edge.start_block = run.first_block
            behind.setdefault(run.parent, []).append(edge)
        return done + behind.pop(None, [])
