"""A step's output, and how requests end (equals ``Scheduler.update`` and ``_finish``)."""

from __future__ import annotations

from kvtwin.engine.compiled.loop import cache, queue
from kvtwin.engine.compiled.loop.loras import lets_go
from kvtwin.engine.compiled.loop.records import note_token
from kvtwin.engine.compiled.loop.state import (
    BATCH_SIZE,
    FINISHED,
    IN_SAMPLES,
    IN_STEP,
    IS_ASYNC,
    LENGTH,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    MAX_TOTAL_TOKENS,
    NONE,
    NUM_ENDED,
    NUM_FINISHED,
    NUM_IN_FLIGHT,
    NUM_IN_FLIGHT_SAMPLES,
    NUM_PLACEHOLDERS,
    NUM_RUNNING,
    NUM_STEPS_IN_FLIGHT,
    NUM_TOKENS,
    OLDEST_IN_FLIGHT,
    REASON,
    RUNNING,
    STATUS,
    STOP,
    STOP_TOKENS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable


@compilable
def update(loop: LoopArrays) -> int:
    """``Scheduler.update`` with the output of the oldest step in flight; how many tokens somebody waited for."""
    numbers, is_async = loop.numbers, loop.settings[IS_ASYNC]
    flight = numbers[OLDEST_IN_FLIGHT]
    start = flight * loop.settings[MAX_RUNNING]
    num_ended = num_delivered = 0
    for place in range(start, start + loop.flights[flight, BATCH_SIZE]):
        request = loop.batches[place, IN_STEP]
        row = loop.requests[request]
        row[NUM_STEPS_IN_FLIGHT] -= 1
        if not loop.batches[place, IN_SAMPLES] or row[STATUS] == FINISHED:
            continue
        row[NUM_IN_FLIGHT_SAMPLES] -= 1
        was_running = row[STATUS] == RUNNING
        if was_running:
            row[NUM_PLACEHOLDERS] -= is_async
        row[NUM_TOKENS] += 1
        num_delivered += note_token(loop, request)
        reason = _reason_to_end(loop, request)
        if was_running:
            cache.register(loop, request, row[NUM_TOKENS] - 1)
        if reason != NONE:
            if was_running:
                num_ended += 1
            else:
                queue.remove(loop, request)
            finish(loop, request, reason)
    numbers[OLDEST_IN_FLIGHT] = (flight + 1) % 2
    numbers[NUM_IN_FLIGHT] -= 1
    if num_ended > 0:
        _keep_running(loop)
    return num_delivered


@compilable
def _reason_to_end(loop: LoopArrays, request: int) -> int:
    """``Scheduler._append_tokens`` with one token."""
    row = loop.requests[request]
    if row[NUM_TOKENS] == row[STOP_TOKENS]:
        return STOP
    if row[NUM_TOKENS] >= loop.settings[MAX_MODEL_LEN] or row[NUM_TOKENS] >= row[MAX_TOTAL_TOKENS]:
        return LENGTH
    return NONE


@compilable
def finish(loop: LoopArrays, request: int, reason: int) -> None:
    """``Scheduler._finish``; who ran is taken out of ``running`` later."""
    row, numbers = loop.requests[request], loop.numbers
    if row[STATUS] == RUNNING:
        lets_go(loop, request)
    cache.free(loop, request)
    row[STATUS] = FINISHED
    row[REASON] = reason
    numbers[NUM_FINISHED] += 1
    loop.ended[numbers[NUM_ENDED]] = request
    numbers[NUM_ENDED] += 1


@compilable
def _keep_running(loop: LoopArrays) -> None:
    num_left = 0
    for index in range(loop.numbers[NUM_RUNNING]):
        request = loop.running[index]
        if loop.requests[request, STATUS] == RUNNING:
            loop.running[num_left] = request
            num_left += 1
    loop.numbers[NUM_RUNNING] = num_left
