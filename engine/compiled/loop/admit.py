"""Who is admitted to a step (equals ``Scheduler._schedule_waiting`` and what it calls)."""

from __future__ import annotations

from kvtwin.engine.compiled.loop import cache, queue
from kvtwin.engine.compiled.loop.end import finish
from kvtwin.engine.compiled.loop.loras import must_skip, takes_hold
from kvtwin.engine.compiled.loop.records import log_admitted
from kvtwin.engine.compiled.loop.state import (
    BATCH_SIZE,
    BATCH_TOKENS,
    BLOCK_SIZE,
    CAPACITY,
    CHUNK_LIMIT,
    CHUNKS,
    FIRST_WAITING,
    HIT_TOKENS,
    HOLDS_PREFILL,
    IN_STEP,
    IN_TOKENS,
    IS_DEFERRED,
    IS_STRICT,
    LEFT_A_BACKLOG,
    MAX_RUNNING,
    NEXT_WAITING,
    NOBODY,
    NUM_COMPUTED,
    NUM_PHANTOM_HIT_TOKENS,
    NUM_RUNNING,
    NUM_TOKENS,
    NUM_WAITING,
    PHANTOM_TOKENS,
    PREEMPTED,
    PREFILL_INTERVAL,
    RUNNING,
    STATUS,
    TOKEN_BUDGET,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable


@compilable
def schedule_waiting(loop: LoopArrays, flight: int) -> bool:
    """``Scheduler._schedule_waiting``; whether it stopped because too few blocks are free."""
    settings, numbers, step = loop.settings, loop.numbers, loop.flights[flight]
    num_passed_over = 0
    lacks_memory = False
    while numbers[NUM_WAITING] > 0:
        budget_left = settings[TOKEN_BUDGET] - step[BATCH_TOKENS]
        if numbers[NUM_RUNNING] >= settings[MAX_RUNNING] or budget_left <= 0:
            break
        request = numbers[FIRST_WAITING]
        row = loop.requests[request]
        if must_skip(loop, request):
            row[IS_DEFERRED] = 1
            queue.remove(loop, request)
            loop.passed_over[num_passed_over] = request
            num_passed_over += 1
            continue
        if not settings[IS_STRICT] and cache.never_fits(loop, row[NUM_TOKENS]):
            queue.remove(loop, request)
            finish(loop, request, CAPACITY)
            continue
        num_hit_blocks = cache.find_hit(loop, request)
        num_new_tokens = _chunk(loop, row[NUM_TOKENS] - num_hit_blocks * settings[BLOCK_SIZE], budget_left)
        if num_new_tokens == 0:
            break
        if not cache.admit_slots(loop, request, num_hit_blocks, num_new_tokens):
            lacks_memory = True
            break
        queue.remove(loop, request)
        _admit(loop, flight, request, num_hit_blocks * settings[BLOCK_SIZE], num_new_tokens)
    for index in range(num_passed_over - 1, -1, -1):
        queue.put_back(loop, loop.passed_over[index])
    _after_admission(loop)
    return lacks_memory


@compilable
def _chunk(loop: LoopArrays, num_tokens: int, budget_left: int) -> int:
    """``Scheduler._chunk``; 0 where a rule admits nobody."""
    if loop.numbers[HOLDS_PREFILL] and num_tokens > 1:
        return 0
    num_tokens = min(num_tokens, loop.numbers[CHUNK_LIMIT])
    if num_tokens <= budget_left:
        return num_tokens
    return budget_left if loop.settings[CHUNKS] else 0


@compilable
def _admit(loop: LoopArrays, flight: int, request: int, num_hit_tokens: int, num_new_tokens: int) -> None:
    """``Scheduler._admit``."""
    row, numbers, step = loop.requests[request], loop.numbers, loop.flights[flight]
    was_preempted = 1 if row[STATUS] == PREEMPTED else 0
    row[STATUS] = RUNNING
    row[IS_DEFERRED] = 0
    row[NUM_COMPUTED] = num_hit_tokens
    row[HIT_TOKENS] = num_hit_tokens
    loop.running[numbers[NUM_RUNNING]] = request
    numbers[NUM_RUNNING] += 1
    takes_hold(loop, request)
    place = flight * loop.settings[MAX_RUNNING] + step[BATCH_SIZE]
    loop.batches[place, IN_STEP] = request
    loop.batches[place, IN_TOKENS] = num_new_tokens
    step[BATCH_SIZE] += 1
    step[BATCH_TOKENS] += num_new_tokens
    numbers[NUM_PHANTOM_HIT_TOKENS] += numbers[PHANTOM_TOKENS]
    log_admitted(loop, request, was_preempted)


@compilable
def _after_admission(loop: LoopArrays) -> None:
    """``PrefillPacing.after_admission``."""
    numbers = loop.numbers
    if loop.settings[PREFILL_INTERVAL] == 1 or numbers[HOLDS_PREFILL]:
        return
    numbers[LEFT_A_BACKLOG] = 0
    request = numbers[FIRST_WAITING]
    while request != NOBODY:
        if not loop.requests[request, IS_DEFERRED]:
            numbers[LEFT_A_BACKLOG] = 1
            return
        request = loop.requests[request, NEXT_WAITING]
