"""The waiting queue, as a list through the requests' rows (equals :mod:`kvtwin.engine.waiting_queue`)."""

from __future__ import annotations

from kvtwin.engine.compiled.loop.state import (
    ARRIVAL_NS,
    BY_PRIORITY,
    FIRST_WAITING,
    LAST_WAITING,
    NEXT_WAITING,
    NOBODY,
    NUM_WAITING,
    PREVIOUS_WAITING,
    PRIORITY,
    RANK,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable


@compilable
def append(loop: LoopArrays, request: int) -> None:
    """``WaitingQueue.append``."""
    if loop.settings[BY_PRIORITY]:
        _insert_in_order(loop, request)
    else:
        _insert_behind(loop, request, loop.numbers[LAST_WAITING])


@compilable
def put_back(loop: LoopArrays, request: int) -> None:
    """``WaitingQueue.put_back``."""
    if loop.settings[BY_PRIORITY]:
        _insert_in_order(loop, request)
    else:
        _insert_behind(loop, request, NOBODY)


@compilable
def remove(loop: LoopArrays, request: int) -> None:
    """``WaitingQueue.remove``; of the head, ``pop``."""
    row = loop.requests[request]
    _join(loop, row[PREVIOUS_WAITING], row[NEXT_WAITING])
    loop.numbers[NUM_WAITING] -= 1


@compilable
def _insert_behind(loop: LoopArrays, request: int, before: int) -> None:
    after = loop.numbers[FIRST_WAITING] if before == NOBODY else loop.requests[before, NEXT_WAITING]
    _join(loop, before, request)
    _join(loop, request, after)
    loop.numbers[NUM_WAITING] += 1


@compilable
def _join(loop: LoopArrays, before: int, after: int) -> None:
    """Let ``after`` follow ``before``; nobody before is the queue's start, nobody after its end."""
    if before == NOBODY:
        loop.numbers[FIRST_WAITING] = after
    else:
        loop.requests[before, NEXT_WAITING] = after
    if after == NOBODY:
        loop.numbers[LAST_WAITING] = before
    else:
        loop.requests[after, PREVIOUS_WAITING] = before


@compilable
def _insert_in_order(loop: LoopArrays, request: int) -> None:
    """Smallest (priority, arrival, id) first."""
    before = loop.numbers[LAST_WAITING]
    while before != NOBODY and _goes_before(loop, request, before):
        before = loop.requests[before, PREVIOUS_WAITING]
    _insert_behind(loop, request, before)


@compilable
def _goes_before(loop: LoopArrays, request: int, other: int) -> bool:
    requests = loop.requests
    if requests[request, PRIORITY] != requests[other, PRIORITY]:
        return bool(requests[request, PRIORITY] < requests[other, PRIORITY])
    if requests[request, ARRIVAL_NS] != requests[other, ARRIVAL_NS]:
        return bool(requests[request, ARRIVAL_NS] < requests[other, ARRIVAL_NS])
    return bool(requests[request, RANK] < requests[other, RANK])
