"""How many requests several servers have at a time."""

from __future__ import annotations

from bisect import bisect_left


class Presence:
    """Counts requests as they come and go, also those whose times are known beforehand, and told later."""

    def __init__(self) -> None:
        self._count = 0
        self._peak = 0
        self._coming_ns: list[int] = []
        self._gone_ns: list[int] = []
        """Of those that come beforehand, and of all that end while some do."""

    def come(self) -> None:
        """A request is sent at the present instant."""
        self._count += 1

    def note(self) -> None:
        """The present number counts for the peak."""
        self._peak = max(self._peak, self._count)

    def come_at(self, time_ns: int) -> None:
        """A request will be sent then; what ends at that instant ends behind it."""
        self._coming_ns.append(time_ns)

    def go(self, time_ns: int) -> None:
        """A request ended."""
        if self._coming_ns:
            self._gone_ns.append(time_ns)
        else:
            self._count -= 1

    def settle(self) -> int:
        """All that was to come has come; return the peak."""
        gone_ns = sorted(self._gone_ns)
        for index, time_ns in enumerate(self._coming_ns, 1):
            self._peak = max(self._peak, self._count + index - bisect_left(gone_ns, time_ns))
        self._count += len(self._coming_ns) - len(gone_ns)
        self._coming_ns, self._gone_ns = [], []
        return self._peak
