"""A request arrives."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.compiled.loop import queue
from kvtwin.engine.compiled.loop.state import (
    FIRST_BLOCK,
    FIRST_TOKEN_NS,
    LAST_TOKEN_NS,
    NEVER,
    NUM_FIELDS,
    NUM_GIVEN,
    NUM_TOKENS,
    PROMPT_TOKENS,
    ROOM_BLOCKS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable


@compilable
def take(loop: LoopArrays, request: int, given: Sequence[int], place: int, room: int, private_key: int) -> None:
    """``Scheduler.add_request``: fill a row and let the request wait.

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
    queue.append(loop, request)
