"""What becomes of a session's blocks between its turns: freed at once, as in vLLM, or pinned until the next turn.

A *pin* is a reference on the blocks that a session's latest ended request left behind, as far as they have keys:
others no later turn can hit. Pinned blocks are used blocks. A pin ends when the session's next request was admitted,
whose own table then holds what it hit, or when the session is over; each policy adds when else. Its blocks then go to
the free queue as if the request had ended only then, the deepest first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from kvtwin.engine.block_pool import NO_KEY, BlockPool
from kvtwin.engine.contiguous.range_pool import RangePool
from kvtwin.engine.request import BlockTables, Request

_SECOND_NS = 10**9


class Pin(NamedTuple):
    """What a session holds between two turns."""

    tables: BlockTables
    """Per cache group, the blocks with keys in order of the prefix. Null blocks are left out."""
    ended_ns: int
    """When the turn ended that left them behind."""


class Retention(ABC):
    """A policy. The scheduler tells it what happens to requests, whoever drives the engine what time it is.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a session has at most one pin; each pin holds one reference
    on each of its blocks, and all of these have keys.
    """

    def __init__(self) -> None:
        self.pins: dict[str, Pin] = {}
        """By session, the oldest first."""
        self.num_forced_releases = 0
        """Pins released because a request found too few blocks beside them though no other ran."""
        self.num_pressure_releases = 0
        """Pins given up because blocks were missing."""

    @property
    @abstractmethod
    def num_pinned_blocks(self) -> int:
        """Blocks in pins; running requests may hold some of them too."""

    @abstractmethod
    def keep(self, request: Request) -> None:
        """``request`` has ended, and its blocks are about to be freed."""

    @abstractmethod
    def admitted(self, request: Request) -> None:
        """``request`` runs, and holds what it hit."""

    @abstractmethod
    def session_over(self, session: str) -> None:
        """No request of ``session`` will come any more."""

    @abstractmethod
    def release_all(self) -> None:
        """Let go of everything."""

    @abstractmethod
    def advance_to(self, now_ns: int) -> None:
        """Take note of the time, and release the pins that have expired."""

    @abstractmethod
    def give_up(self, request: Request, *, is_alone: bool) -> bool:
        """Release a pin, if this policy does, since ``request`` finds too few blocks; whether one was released.

        ``is_alone``: no other request runs, so none would ever free a block for it.
        """


class FreeAtOnce(Retention):
    """``lru``, what vLLM does: no pins. Blocks are free, and stay cached until they are evicted in their turn."""

    num_pinned_blocks = 0

    def keep(self, request: Request) -> None: ...
    def admitted(self, request: Request) -> None: ...
    def session_over(self, session: str) -> None: ...
    def release_all(self) -> None: ...
    def advance_to(self, now_ns: int) -> None: ...

    def give_up(self, request: Request, *, is_alone: bool) -> bool:
        return False


class PinSessions(Retention):
    """``pin``: until the next turn, whatever it costs the others; but no request that is alone fails for a pin."""

    def __init__(self, pool: BlockPool) -> None:
        super().__init__()
        self._pool = pool
        self._num_pins_of_block: Counter[int] = Counter()
        self._now_ns = 0

    @property
    def num_pinned_blocks(self) -> int:
        return len(self._num_pins_of_block)

    def keep(self, request: Request) -> None:
        if request.session is None or not request.block_tables:
            return
        keys = self._pool.keys
        tables = [[block for block in table if keys[block] != NO_KEY] for table in request.block_tables]
        for table in tables:
            self._pool.touch(table)
            self._num_pins_of_block.update(table)
        self._release(request.session)  # of a request beside this one; what both share is never free in between
        self.pins[request.session] = Pin(tables, self._now_ns)

    def admitted(self, request: Request) -> None:
        if request.session is not None:
            self._release(request.session)

    def session_over(self, session: str) -> None:
        self._release(session)

    def release_all(self) -> None:
        for session in list(self.pins):
            self._release(session)

    def advance_to(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def give_up(self, request: Request, *, is_alone: bool) -> bool:
        if not is_alone or not self._release_oldest(request):
            return False
        self.num_forced_releases += 1
        return True

    def _release_oldest(self, request: Request) -> bool:
        """Release the oldest pin, that of the session of ``request`` last; whether there was one.

        What ``request`` hits of its own pin would not become free for it.
        """
        if not self.pins:
            return False
        others = (session for session in self.pins if session != request.session)
        self._release(next(others, request.session or ""))
        return True

    def _release(self, session: str) -> None:
        pin = self.pins.pop(session, None)
        if pin is None:
            return
        for table in pin.tables:
            self._pool.free(table[::-1])
            self._num_pins_of_block.subtract(table)
            for block in table:
                if not self._num_pins_of_block[block]:
                    del self._num_pins_of_block[block]


class PinForTime(PinSessions):
    """``ttl=S``: a pin that ends also S seconds after the turn that left it behind."""

    def __init__(self, pool: BlockPool, ttl_ns: int) -> None:
        super().__init__(pool)
        self._ttl_ns = ttl_ns

    def keep(self, request: Request) -> None:
        if self._ttl_ns:
            super().keep(request)

    def advance_to(self, now_ns: int) -> None:
        super().advance_to(now_ns)
        while self.pins:
            session, oldest = next(iter(self.pins.items()))
            if oldest.ended_ns + self._ttl_ns > now_ns:
                break
            self._release(session)


class PinUntilPressure(PinSessions):
    """``pin-until-pressure``: a pin that ends also when blocks are missing, before anybody waits or is preempted."""

    def give_up(self, request: Request, *, is_alone: bool) -> bool:
        if not self._release_oldest(request):
            return False
        self.num_pressure_releases += 1
        return True


def make_retention(name: str, pool: BlockPool | RangePool) -> Retention:
    """The policy of a ``--retention``. In a range pool nothing stays cached that could be kept."""
    return parse_retention(name)(pool) if isinstance(pool, BlockPool) else FreeAtOnce()


def parse_retention(name: str) -> Callable[[BlockPool], Retention]:
    """The policy of a ``--retention``, to be made for a pool. Raises ValueError for a name that no policy has."""
    if name == "lru":
        return lambda _pool: FreeAtOnce()
    if name == "pin":
        return PinSessions
    if name == "pin-until-pressure":
        return PinUntilPressure
    with suppress(ValueError, OverflowError):
        if name.startswith("ttl=") and (ttl_ns := round(float(name[4:]) * _SECOND_NS)) >= 0:
            return lambda pool: PinForTime(pool, ttl_ns)
    raise ValueError(f"retention: expected lru, pin, pin-until-pressure or ttl=SECONDS, got {name}")
