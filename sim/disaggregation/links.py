"""The links over which replicas send each other KV caches: every replica has one, shared fairly by its transfers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from kvtwin.sim.clock import Clock

_PARTS_PER_NS = 1 << 20
"""What is left of a transfer is counted in these parts of a nanosecond of a link, so that shares are whole numbers."""


@dataclass(eq=False, slots=True)
class _Transfer:
    source: int
    destination: int
    parts_left: int
    done: Callable[[], None]


class FairLinks:
    """Links of equal bandwidth in a network that is faster than they are.

    A transfer occupies the link of its source and that of its destination. Each link divides its bandwidth equally
    among its transfers, and a transfer goes on at the smaller of its two shares: what it leaves unused nobody gets.
    Before its first byte each transfer waits for the latency, in which it occupies nothing.

    Invariants: every transfer that was begun is done exactly once, at no time before latency + bytes / bandwidth; links
    with as many transfers move as many bytes at the same time.
    """

    def __init__(self, clock: Clock, *, bytes_per_s: float, latency_ns: int) -> None:
        """``bytes_per_s`` may be infinite. ValueError: it is not above 0, or the latency is below 0."""
        if not bytes_per_s > 0:
            raise ValueError(f"bytes_per_s: expected more than 0, got {bytes_per_s}")
        if latency_ns < 0:
            raise ValueError(f"latency_ns: expected at least 0, got {latency_ns}")
        self._clock = clock
        self._parts_per_byte = 1e9 * _PARTS_PER_NS / bytes_per_s
        self._latency_ns = latency_ns
        self._active: list[_Transfer] = []
        self._num_on_link: Counter[int] = Counter()
        self._advanced_ns = 0
        """Up to when the transfers' progress is counted."""
        self._planned_ns: int | None = None
        """The next instant at which one of them may be done."""

    @property
    def latency_ns(self) -> int:
        """From the request of a transfer to its first byte."""
        return self._latency_ns

    @property
    def num_active(self) -> int:
        """Transfers that occupy links now."""
        return len(self._active)

    def send(self, source: int, destination: int, num_bytes: int, done: Callable[[], None]) -> None:
        """Send ``num_bytes`` from the link of replica ``source`` to that of ``destination``; call ``done`` then."""
        transfer = _Transfer(source, destination, round(num_bytes * self._parts_per_byte), done)
        self._clock.call_at(self._clock.now_ns + self._latency_ns, lambda _: self._begin(transfer))

    def _begin(self, transfer: _Transfer) -> None:
        self._advance()
        self._active.append(transfer)
        self._num_on_link.update((transfer.source, transfer.destination))
        self._plan()

    def _advance(self) -> None:
        """Count what has been sent since the last change: in between no share changed."""
        passed = (self._clock.now_ns - self._advanced_ns) * _PARTS_PER_NS
        self._advanced_ns = self._clock.now_ns
        for transfer in self._active:
            transfer.parts_left -= passed // self._num_sharing(transfer)

    def _num_sharing(self, transfer: _Transfer) -> int:
        """One over the transfer's share of a link."""
        return max(self._num_on_link[transfer.source], self._num_on_link[transfer.destination])

    def _plan(self) -> None:
        """Come back when the first of the transfers is done, if none begins or ends before."""
        if not self._active:
            return
        left = min(max(0, each.parts_left) * self._num_sharing(each) for each in self._active)
        due_ns = self._clock.now_ns - -left // _PARTS_PER_NS
        if due_ns != self._planned_ns:
            self._planned_ns = due_ns
            self._clock.call_at(due_ns, lambda _: self._come(due_ns))

    def _come(self, due_ns: int) -> None:
        if due_ns != self._planned_ns:
            return  # shares have changed since this was planned
        self._planned_ns = None
        self._advance()
        done = [each for each in self._active if each.parts_left <= 0]
        self._active = [each for each in self._active if each.parts_left > 0]
        for each in done:
            self._num_on_link.subtract((each.source, each.destination))
        self._plan()
        for each in done:
            each.done()
