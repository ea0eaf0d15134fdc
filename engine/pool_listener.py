"""Whoever wants to know what becomes of blocks: a pool has one list of listeners, and nothing else watches blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvtwin.engine.request import Request


class TablePart(NamedTuple):
    """The part of a request's table whose blocks are given keys."""

    request: Request
    group_index: int
    full: range
    """Positions of the blocks that are full from now on."""
    kept: Sequence[int]
    """Those of them that are given keys; others cannot be hit."""


class PoolListener:
    """Is told what became of blocks, in order, after the pool has changed; changes nothing there.

    Whoever listens overrides what it wants to know, and stands in ``listeners`` of the pool.
    """

    looks_at_keys_alone = False
    """Whether it overrides no more than ``registered``, of which it does not look at ``part``, and ``evicted``."""

    def taken(self, blocks: Sequence[int]) -> None:
        """They left the free queue: what they held is gone."""

    def evicted(self, block: int, key: int) -> None:
        """It was taken and lost its key. Told before :meth:`taken`, when all blocks of the call have lost theirs."""

    def lost_key(self, block: int, key: int) -> None:
        """It lost a key beside the one that :meth:`evicted` told, or while it is held."""

    def touched(self, blocks: Sequence[int]) -> None:
        """They have one more holder, which found them in the cache, or is a fork; null blocks may stand among them."""

    def freed(self, blocks: Sequence[int]) -> None:
        """They have one holder less; null blocks may stand among them."""

    def registered(self, blocks: Sequence[int], keys: Sequence[int], part: TablePart | None) -> None:
        """They were given these keys, so that prompts can hit them; they are ``part.kept``, and may be none."""

    def cleared(self) -> None:
        """All keys are forgotten."""
