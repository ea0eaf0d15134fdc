"""Chunks: pieces of host memory that hold a few blocks of a prefix each, and what one request does with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

BEING_WRITTEN = -1
"""Readers of a chunk whose content is still on its way."""


@dataclass(slots=True)
class Chunk:
    """One place in the host that holds something."""

    index: int
    num_readers: int = BEING_WRITTEN
    """Loads under way that read it."""

    @property
    def is_ready(self) -> bool:
        """Whether its content has arrived."""
        return self.num_readers != BEING_WRITTEN


@dataclass(slots=True, eq=False)
class RequestAccess:
    """What one request has done in the store since the store was last cleared: every key counts once."""

    positions: dict[int, int]
    """Depth in the request's prefix of every key that it has: the connector's, which goes on adding to it."""
    rank: int = 0
    """Of its first access among those of all requests; 0: there was none yet."""
    seen: set[int] = field(default_factory=set)
    inserted: set[int] = field(default_factory=set)
    reused: set[int] = field(default_factory=set)
    missed: set[int] = field(default_factory=set)
    """Keys that it offered and the store lacked."""

    def seen_in_order(self) -> list[int]:
        """The keys it has seen, those of the beginning of the prefix first."""
        return sorted(self.seen, key=self.positions.__getitem__)


class EvictionPolicy(Protocol):
    """Holds the chunks of a store and says which make room. Evicted is only what nobody reads or writes."""

    def __contains__(self, key: int) -> bool:
        """Whether there is a chunk under ``key``."""

    def get(self, key: int) -> Chunk | None:
        """The chunk under ``key``."""

    def insert(self, key: int, chunk: Chunk, access: RequestAccess) -> None:
        """Hold a new chunk, which is going to be written."""

    def missed(self, keys: Sequence[int]) -> None:
        """A request offers ``keys`` for the first time, and the store lacks them."""

    def accessed(self, keys: Sequence[int], access: RequestAccess) -> None:
        """A request sees ``keys``, held or not, for the first time."""

    def finished(self, access: RequestAccess) -> None:
        """A request has ended: what it saw counts as used once."""

    def pinned(self, key: int) -> None:
        """Somebody begins to read a chunk that nobody read."""

    def released(self, key: int) -> None:
        """Nobody reads or writes the chunk any more."""

    def evict(self, number: int, kept: set[int]) -> list[Chunk] | None:
        """Let go of ``number`` chunks, none of them ``kept``; None, changing nothing, if there are fewer."""

    def clear(self) -> None:
        """Let go of everything and forget all that was learnt."""

    def chunks(self) -> dict[int, Chunk]:
        """All chunks by key."""
