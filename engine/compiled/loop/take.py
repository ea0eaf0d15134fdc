"""A request arrives."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.compiled.loop import queue
from kvtwin.engine.compiled.loop.ahead import arrive
from kvtwin.engine.compiled.loop.state import (
    ARRIVES_NS,
    ARRIVING,
    FIRST_BLOCK,
    FIRST_TOKEN_NS,
    LAST_NS,
    LAST_TOKEN_NS,
    NEVER,
    NUM_ARRIVALS,
    NUM_FIELDS,
    NUM_GIVEN,
    NUM_TOKENS,
    PROMPT_TOKENS,
    ROOM_BLOCKS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable


@compilable
def take(
    loop: LoopArrays, request: int, given: Sequence[int], place: int, room: int, private_key: int, arrives_ns: int
) -> None:
    """``Scheduler.add_request``: fill a row and let the request wait, from ``arrives_ns`` on; ``NEVER``: now.

    ``given`` are the first fields of the row, then runs of leading keys of its blocks: the first key, the step to the
    next one, and how many there are. It has ``room`` blocks from ``place`` on in the arenas; those without a given key
    get private ones, from ``private_key`` downwards.
    """
    row = loop.requests[request]
    for field in range(NUM_GIVEN):
        row[field] = given[field]
    for field in range(NUM_GIVEN, NUM_FIELDS):
        row[field] = 0
    row[NUM_TOKENS] = row[PROMPT_TOKENS]
    row[FIRST_TOKEN_NS] = NEVER
    row[LAST_TOKEN_NS] = NEVER
    row[FIRST_BLOCK] = place
    row[ROOM_BLOCKS] = room
    num_keys = 0
    for start in range(NUM_GIVEN, len(given), 3):
        first_key, step, count = given[start], given[start + 1], given[start + 2]
        for index in range(min(count, room - num_keys)):
            loop.keys[place + num_keys] = first_key + index * step
            num_keys += 1
    for index in range(num_keys, room):
        loop.keys[place + index] = private_key - index
    if arrives_ns == NEVER:
        arrive(loop, LAST_NS)  # whoever is expected came before
        queue.append(loop, request)
    else:
        arrival = loop.arrivals[loop.numbers[NUM_ARRIVALS]]
        arrival[ARRIVES_NS] = arrives_ns
        arrival[ARRIVING] = request
        loop.numbers[NUM_ARRIVALS] += 1
