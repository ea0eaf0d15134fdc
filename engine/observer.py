"""Whoever wants to know why: the scheduler and the KV cache tell an observer about requests while they decide.

What becomes of blocks is told to the listeners of their pool (:mod:`kvtwin.engine.pool_listener`).
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.demand import Demand
from kvtwin.engine.executor import Step
from kvtwin.engine.hit import Hit
from kvtwin.engine.request import BlockTables, Request


class Observer:
    """Is told what happens, in order, before or after it changes the state as each method says; changes nothing.

    Whoever observes overrides what it wants to know. The class itself is the observer of an engine that nobody
    observes.
    """

    def arrived(self, request: Request) -> None:
        """It waits now."""

    def looked_up(self, request: Request, keys: Sequence[Sequence[int]], hit: Hit) -> None:
        """``hit`` was found for it; ``keys`` are those of its blocks, per group, under which they may be cached."""

    def demanded(self, request: Request, demand: Demand) -> None:
        """It asks for blocks, and gets them if the demand is met."""

    def granted(self, request: Request, blocks: BlockTables) -> None:
        """These blocks, per group, were added to its tables; null blocks stand where none is needed."""

    def releases(self, request: Request) -> None:
        """It is about to let go of all blocks of its tables."""

    def preempted(self, request: Request, needed_by: Request | None) -> None:
        """It is about to be preempted for another one, or itself; None: by a reset of the prefix cache."""

    def scheduled(self, step: Step) -> None:
        """This step was decided."""

    def ended(self, request: Request) -> None:
        """It ended; its finish reason says why."""
