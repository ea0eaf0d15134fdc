"""Which requests may be in the next step as far as blocks go, and which are paused for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from kvtwin.engine.request import Request

OrderKey = Callable[[Request], tuple[int, int]]


class CapacityDemand(Protocol):
    """What a policy asks about requests and blocks; made anew for every step."""

    @property
    def num_free_blocks(self) -> int:
        """Device blocks that nobody holds."""

    def to_completion(self, request: Request) -> int:
        """Blocks for its whole length, prompt and most output, beyond those that it holds."""

    def for_step(self, request: Request) -> int:
        """Blocks for its next step beyond those that it holds: the whole prompt's when it starts."""

    def released_by(self, request: Request) -> int:
        """Blocks that become free if it is paused too, beside those counted before."""

    def must_defer(self, request: Request) -> bool:
        """Whether one that was chosen before it computes the first block that it misses."""

    def chosen(self, request: Request) -> None:
        """It will be in the step."""


class Choice(NamedTuple):
    """Who may run, in order, and who loses its blocks."""

    fitting: list[Request]
    paused: list[Request]
    lacks_blocks: bool


class CapacityPolicy(Protocol):
    """One of TensorRT-LLM's capacity schedulers. ``order`` gives a request's place among all."""

    def choose(
        self, running: Sequence[Request], waiting: Iterable[Request], demand: CapacityDemand, most: int, order: OrderKey
    ) -> Choice:
        """At most ``most`` of those that were started and of those that were not, both in order."""


class GuaranteedNoEvict:
    """Whoever is started can run to its end: only requests whose whole length fits beside all others start."""

    starts_beside_others = True
    defers = True

    def choose(
        self, running: Sequence[Request], waiting: Iterable[Request], demand: CapacityDemand, most: int, order: OrderKey
    ) -> Choice:
        fitting = list(running[:most])
        free = demand.num_free_blocks
        for request in fitting:
            free -= demand.to_completion(request)
            demand.chosen(request)
        if running and not self.starts_beside_others:
            return Choice(fitting, [], False)
        for request in waiting:
            if len(fitting) >= most:
                break
            if self.defers and demand.must_defer(request):
                continue
            needed = demand.to_completion(request)
            if needed > free:
                return Choice(fitting, [], True)
            free -= needed
            fitting.append(request)
            demand.chosen(request)
        return Choice(fitting, [], False)


class StaticBatch(GuaranteedNoEvict):
    """The same, but a batch runs to its end before the next one starts, and nobody is deferred."""

    starts_beside_others = False
    defers = False


class MaxUtilization:
    """Whoever fits now runs; where the next in order does not, the last that was started behind it is paused."""

    def choose(
        self, running: Sequence[Request], waiting: Iterable[Request], demand: CapacityDemand, most: int, order: OrderKey
    ) -> Choice:
        fitting: list[Request] = []
        paused: list[Request] = []
        started = list(running)
        is_started = set(running)
        free = demand.num_free_blocks
        for request in _in_order(running, waiting, order):
            if len(fitting) >= most or (paused and order(request) >= order(paused[-1])):
                break
            if request not in is_started and demand.must_defer(request):
                continue
            while demand.for_step(request) > free:
                if not started or order(started[-1]) < order(request):
                    return Choice(fitting, paused, True)
                victim = started.pop()
                paused.append(victim)
                free += demand.released_by(victim)
                if victim is request:
                    return Choice(fitting, paused, True)
            free -= demand.for_step(request)
            fitting.append(request)
            demand.chosen(request)
        return Choice(fitting, paused, bool(paused))


def _in_order(one: Sequence[Request], other: Iterable[Request], order: OrderKey) -> Iterable[Request]:
    """Two ordered sequences as one."""
    started = iter(one)
    request = next(started, None)
    for each in other:
        while request is not None and order(request) < order(each):
            yield request
            request = next(started, None)
        yield each
    if request is not None:
        yield request
        yield from started


POLICIES: dict[str, type[GuaranteedNoEvict] | type[MaxUtilization]] = {
    "GUARANTEED_NO_EVICT": GuaranteedNoEvict,
    "MAX_UTILIZATION": MaxUtilization,
    "STATIC_BATCH": StaticBatch,
}
