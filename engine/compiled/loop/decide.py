"""Which requests compute how many tokens in the next step (equals ``Scheduler.schedule``, rule by rule)."""

from __future__ import annotations

from kvtwin.engine.compiled.loop import cache, queue
from kvtwin.engine.compiled.loop.admit import schedule_waiting
from kvtwin.engine.compiled.loop.end import finish
from kvtwin.engine.compiled.loop.loras import lets_go, must_skip
from kvtwin.engine.compiled.loop.records import log_preempted, note_step
from kvtwin.engine.compiled.loop.state import (
    ARRIVAL_NS,
    BATCH_SIZE,
    BATCH_TOKENS,
    BY_PRIORITY,
    CHUNK_LIMIT,
    DURATION_NS,
    FIRST_WAITING,
    HIGHEST_COMPUTED,
    HOLDS_PREFILL,
    IN_SAMPLES,
    IN_STEP,
    IN_TOKENS,
    IS_ADAPTIVE,
    IS_ASYNC,
    IS_PREFILL_CHUNK,
    IS_STRICT,
    LEFT_A_BACKLOG,
    MAX_BATCHED_TOKENS,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    MAX_TOTAL_TOKENS,
    MOST,
    NOBODY,
    NOW_NS,
    NUM_COMPUTED,
    NUM_FINISHED,
    NUM_IN_FLIGHT,
    NUM_IN_FLIGHT_SAMPLES,
    NUM_PLACEHOLDERS,
    NUM_PREEMPTED,
    NUM_PREEMPTIONS,
    NUM_RECOMPUTED_TOKENS,
    NUM_RUNNING,
    NUM_SAMPLES,
    NUM_SCHEDULED_TOKENS,
    NUM_STEPS,
    NUM_STEPS_IN_FLIGHT,
    NUM_TOKENS,
    NUM_WAITING,
    OLDEST_IN_FLIGHT,
    PREEMPTED,
    PREFILL_INTERVAL,
    PRIORITY,
    PROMPT_TOKENS,
    STATUS,
    STEPS_TO_HOLD,
    STUCK,
    SUBMITTED_NS,
    THRESHOLD,
    TOKEN_BUDGET,
    LoopArrays,
)
from kvtwin.engine.compiled.loop.step_time import duration_ns
from kvtwin.engine.compiled.marks import compilable


@compilable
def schedule(loop: LoopArrays) -> int:
    """``Scheduler.schedule``: put the next step in flight; how many were preempted, or ended since the step before."""
    numbers = loop.numbers
    numbers[NUM_STEPS] += 1
    flight = (numbers[OLDEST_IN_FLIGHT] + numbers[NUM_IN_FLIGHT]) % 2
    step = loop.flights[flight]
    step[BATCH_SIZE] = 0
    step[BATCH_TOKENS] = 0
    _start_chunks(loop)
    _start_pacing(loop)
    num_preempted = _schedule_running(loop, flight)
    first_admitted = step[BATCH_SIZE]
    lacks_memory = True
    if num_preempted == 0:
        lacks_memory = schedule_waiting(loop, flight)
    _pace_after(loop, flight, first_admitted)
    if step[BATCH_SIZE] == 0 and num_preempted == 0 and not loop.settings[IS_STRICT]:
        _reject_stuck_head(loop)
    num_changes = num_preempted + numbers[NUM_FINISHED]
    numbers[NUM_FINISHED] = 0
    _advance(loop, flight)
    step[SUBMITTED_NS] = numbers[NOW_NS]
    numbers[NUM_IN_FLIGHT] += 1
    note_step(loop, flight, first_admitted, num_preempted, lacks_memory)
    return num_changes


@compilable
def _start_chunks(loop: LoopArrays) -> None:
    """``ChunkLimit.start_step``."""
    settings = loop.settings
    num_requests = loop.numbers[NUM_RUNNING] + loop.numbers[NUM_WAITING]
    limit = MOST
    if settings[THRESHOLD] and num_requests > 1:
        shared = settings[MAX_BATCHED_TOKENS] // num_requests if settings[IS_ADAPTIVE] else 0
        limit = max(settings[THRESHOLD], shared)
    loop.numbers[CHUNK_LIMIT] = limit


@compilable
def _start_pacing(loop: LoopArrays) -> None:
    """``PrefillPacing.start_step``."""
    numbers = loop.numbers
    numbers[HOLDS_PREFILL] = 0
    if numbers[STEPS_TO_HOLD] == 0 or numbers[LEFT_A_BACKLOG]:
        return
    for index in range(numbers[NUM_RUNNING]):
        if not loop.requests[loop.running[index], IS_PREFILL_CHUNK]:
            numbers[HOLDS_PREFILL] = 1
            return


@compilable
def _pace_after(loop: LoopArrays, flight: int, first_admitted: int) -> None:
    """``PrefillPacing.after_step``."""
    numbers, interval = loop.numbers, loop.settings[PREFILL_INTERVAL]
    if interval == 1 or loop.flights[flight, BATCH_SIZE] == 0:
        return
    if _carries_prefill(loop, flight, first_admitted):
        numbers[STEPS_TO_HOLD] = interval - 1
    elif numbers[STEPS_TO_HOLD]:
        numbers[STEPS_TO_HOLD] -= 1


@compilable
def _carries_prefill(loop: LoopArrays, flight: int, first_admitted: int) -> bool:
    start = flight * loop.settings[MAX_RUNNING]
    for index in range(loop.flights[flight, BATCH_SIZE]):
        row = loop.requests[loop.batches[start + index, IN_STEP]]
        if index < first_admitted:
            if row[IS_PREFILL_CHUNK]:
                return True
        elif row[NUM_TOKENS] - row[NUM_COMPUTED] > 1:
            return True
    return False


@compilable
def _schedule_running(loop: LoopArrays, flight: int) -> int:
    """``Scheduler._schedule_running``; how many were preempted."""
    numbers, step = loop.numbers, loop.flights[flight]
    start = flight * loop.settings[MAX_RUNNING]
    num_preempted = 0
    index = 0
    while index < numbers[NUM_RUNNING]:
        budget_left = loop.settings[TOKEN_BUDGET] - step[BATCH_TOKENS]
        if budget_left <= 0:
            break
        request = loop.running[index]
        index += 1
        num_new_tokens = _num_tokens_to_run(loop, request, budget_left)
        if num_new_tokens <= 0 or (numbers[HOLDS_PREFILL] and loop.requests[request, IS_PREFILL_CHUNK]):
            continue
        fits = cache.extend_slots(loop, request, num_new_tokens)
        while not fits:
            place = _choose_victim(loop)
            victim = loop.running[place]
            if place < index:
                index -= 1
            for later in range(place, numbers[NUM_RUNNING] - 1):
                loop.running[later] = loop.running[later + 1]
            numbers[NUM_RUNNING] -= 1
            if _remove_from_step(loop, flight, victim):
                cache.mark_phantoms(loop, victim)
            _preempt(loop, victim)
            num_preempted += 1
            if victim == request:
                break
            fits = cache.extend_slots(loop, request, num_new_tokens)
        if fits:
            loop.batches[start + step[BATCH_SIZE], IN_STEP] = request
            loop.batches[start + step[BATCH_SIZE], IN_TOKENS] = num_new_tokens
            step[BATCH_SIZE] += 1
            step[BATCH_TOKENS] += num_new_tokens
    return num_preempted


@compilable
def _num_tokens_to_run(loop: LoopArrays, request: int, budget_left: int) -> int:
    """``Scheduler._num_tokens_to_run``."""
    row = loop.requests[request]
    if row[NUM_PLACEHOLDERS] and row[NUM_TOKENS] + 1 >= row[MAX_TOTAL_TOKENS]:
        return 0
    num_new_tokens: int = min(row[NUM_TOKENS] + row[NUM_PLACEHOLDERS] - row[NUM_COMPUTED], loop.numbers[CHUNK_LIMIT])
    room: int = loop.settings[MAX_MODEL_LEN] - 1 - row[NUM_COMPUTED]
    return min(num_new_tokens, min(budget_left, room))


@compilable
def _choose_victim(loop: LoopArrays) -> int:
    """``Scheduler._choose_victim``: its place among the running."""
    last = loop.numbers[NUM_RUNNING] - 1
    if not loop.settings[BY_PRIORITY]:
        return last
    requests, chosen = loop.requests, 0
    for place in range(1, last + 1):
        request, best = loop.running[place], loop.running[chosen]
        if requests[request, PRIORITY] > requests[best, PRIORITY] or (
            requests[request, PRIORITY] == requests[best, PRIORITY]
            and requests[request, ARRIVAL_NS] > requests[best, ARRIVAL_NS]
        ):
            chosen = place
    return chosen


@compilable
def _remove_from_step(loop: LoopArrays, flight: int, request: int) -> bool:
    """``Step.remove``; whether it was there. First come, first served preempts only who is not in the step yet."""
    if not loop.settings[BY_PRIORITY]:
        return False
    step, start = loop.flights[flight], flight * loop.settings[MAX_RUNNING]
    for index in range(step[BATCH_SIZE]):
        if loop.batches[start + index, IN_STEP] == request:
            step[BATCH_TOKENS] -= loop.batches[start + index, IN_TOKENS]
            for later in range(start + index, start + step[BATCH_SIZE] - 1):
                loop.batches[later, IN_STEP] = loop.batches[later + 1, IN_STEP]
                loop.batches[later, IN_TOKENS] = loop.batches[later + 1, IN_TOKENS]
            step[BATCH_SIZE] -= 1
            return True
    return False


@compilable
def _preempt(loop: LoopArrays, request: int) -> None:
    """``Scheduler._preempt``."""
    row = loop.requests[request]
    log_preempted(loop, request)
    lets_go(loop, request)
    cache.free(loop, request)
    row[STATUS] = PREEMPTED
    row[NUM_COMPUTED] = 0
    row[NUM_PLACEHOLDERS] = 0
    row[NUM_PREEMPTIONS] += 1
    loop.numbers[NUM_PREEMPTED] += 1
    queue.put_back(loop, request)


@compilable
def _reject_stuck_head(loop: LoopArrays) -> None:
    """``Scheduler._reject_stuck_head``."""
    numbers = loop.numbers
    head = numbers[FIRST_WAITING]
    if numbers[NUM_RUNNING] > 0 or head == NOBODY or must_skip(loop, head):
        return
    queue.remove(loop, head)
    finish(loop, head, STUCK)


@compilable
def _advance(loop: LoopArrays, flight: int) -> None:
    """``Scheduler._advance``, and what the step-time model looks at (``sim.step_shape``)."""
    numbers, step = loop.numbers, loop.flights[flight]
    start, is_async = flight * loop.settings[MAX_RUNNING], loop.settings[IS_ASYNC]
    num_decodes = num_prefill_tokens = num_context_tokens = num_pairs = num_samples = longest = 0
    for place in range(start, start + step[BATCH_SIZE]):
        row = loop.requests[loop.batches[place, IN_STEP]]
        num_tokens = loop.batches[place, IN_TOKENS]
        before = row[NUM_COMPUTED]
        end = before + num_tokens
        row[NUM_COMPUTED] = end
        row[NUM_STEPS_IN_FLIGHT] += 1
        samples = 1 if end >= row[NUM_TOKENS] + row[NUM_PLACEHOLDERS] else 0
        row[IS_PREFILL_CHUNK] = 1 - samples
        loop.batches[place, IN_SAMPLES] = samples
        if samples:
            num_samples += 1
            row[NUM_IN_FLIGHT_SAMPLES] += 1
            row[NUM_PLACEHOLDERS] += is_async
        if before < row[HIGHEST_COMPUTED]:
            numbers[NUM_RECOMPUTED_TOKENS] += min(end, row[HIGHEST_COMPUTED]) - before
        if end > row[HIGHEST_COMPUTED]:
            row[HIGHEST_COMPUTED] = end
        num_context_tokens += end
        if num_tokens == 1 and before >= row[PROMPT_TOKENS]:
            num_decodes += 1
            longest = max(longest, end)
        else:
            num_prefill_tokens += num_tokens
            num_pairs += num_tokens * before + num_tokens * (num_tokens + 1) // 2
    numbers[NUM_SCHEDULED_TOKENS] += step[BATCH_TOKENS]
    step[NUM_SAMPLES] = num_samples
    step[DURATION_NS] = 0
    if step[BATCH_SIZE] > 0:
        step[DURATION_NS] = duration_ns(
            loop, step[BATCH_SIZE], num_decodes, num_prefill_tokens, num_context_tokens, num_pairs, num_samples, longest
        )
