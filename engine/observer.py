"""Whoever wants to know why: the scheduler and the KV cache tell an observer facts while they decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvtwin.engine.executor import Step
from kvtwin.engine.request import BlockTables, Request

if TYPE_CHECKING:
    from kvtwin.engine.kv_cache_manager import Hit


class Demand(NamedTuple):
    """Blocks that a request asks for, and what there is."""

    num_missing_blocks: int
    """For the tokens of this step; at admission, unless told otherwise, for all known tokens."""
    num_free_blocks: int
    num_claimed_blocks: int = 0
    """Free ones that the request's own hit takes: blocks that nobody holds, and those that are read from the host."""
    num_reserved_blocks: int = 0
    """Free ones that admission leaves free (the watermark)."""

    @property
    def num_available_blocks(self) -> int:
        """Free ones that the request may have; negative where even its hit does not fit."""
        return self.num_free_blocks - self.num_claimed_blocks - self.num_reserved_blocks

    @property
    def is_met(self) -> bool:
        """Whether they are enough."""
        return self.num_missing_blocks <= self.num_available_blocks


class Observer:
    """Is told what happens, in order, before or after it changes the state as each method says; changes nothing.

    Whoever observes overrides what it wants to know.
    """

    def arrived(self, request: Request) -> None:
        """It waits now."""

    def looked_up(self, request: Request, keys: Sequence[Sequence[int]], hit: Hit) -> None:
        """``hit`` was found for it; ``keys`` are those of its blocks, per group, under which they may be cached."""

    def demanded(self, request: Request, demand: Demand) -> None:
        """It asks for blocks, and gets them if the demand is met."""

    def evicted(self, block: int, key: int) -> None:
        """``block`` was handed out and lost its key. To whom: the next request that is told of by `allocated`."""

    def allocated(self, request: Request, blocks: BlockTables) -> None:
        """These blocks, per group, were added to its tables; null blocks stand where none is needed."""

    def registered(self, request: Request, keys: Sequence[int], positions: Sequence[int], group_index: int) -> None:
        """Its blocks at these positions were given these keys."""

    def freed(self, request: Request) -> None:
        """It is about to lose all blocks of its tables."""

    def preempted(self, request: Request, needed_by: Request | None) -> None:
        """It is about to be preempted for another one, or itself; None: by a reset of the prefix cache."""

    def scheduled(self, step: Step) -> None:
        """This step was decided."""

    def ended(self, request: Request) -> None:
        """It ended; its finish reason says why."""
