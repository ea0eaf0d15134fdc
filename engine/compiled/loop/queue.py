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
    requests, numbers = loop.requests, loop.numbers
    before, after = requests[request, PREVIOUS_WAITING], requests[request, NEXT_WAITING]
    if before == NOBODY:
        numbers[FIRST_WAITING] = after
    else:
        requests[before, NEXT_WAITING] = after
    if after == NOBODY:
        numbers[LAST_WAITING] = before
    else:
        requests[after, PREVIOUS_WAITING] = before
    numbers[NUM_WAITING] -= 1


@compilable
def _insert_behind(loop: LoopArrays, request: int, before: int) -> None:
    requests, numbers = loop.requests, loop.numbers
    after = numbers[FIRST_WAITING] if before == NOBODY else requests[before, NEXT_WAITING]
    requests[request, PREVIOUS_WAITING] = before
    requests[request, NEXT_WAITING] = after
    if before == NOBODY:
        numbers[FIRST_WAITING] = request
    else:
        requests[before, NEXT_WAITING] = request
    if after == NOBODY:
        numbers[LAST_WAITING] = request
    else:
        requests[after, PREVIOUS_WAITING] = request
    numbers[NUM_WAITING] += 1


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
