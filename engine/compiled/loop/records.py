"""What is recorded (equals :mod:`kvtwin.sim.recording`): rows of steps, latencies of tokens, a log of requests."""

from __future__ import annotations

from kvtwin.engine.compiled.arrays import NUM_FREE
from kvtwin.engine.compiled.loop.state import (
    BATCH_SIZE,
    BATCH_TOKENS,
    BLOCK_SIZE,
    CHANGED_BLOCK,
    CHANGED_KEY,
    FIRST_TOKEN_NS,
    HIGHEST_COMPUTED,
    HIT_TOKENS,
    IN_STEP,
    IS_WARM_UP,
    KEY_ROWS,
    LAST_TOKEN_NS,
    LATENCY_ROWS,
    LOG_ADMITTED,
    LOG_ENDED,
    LOG_HIT_TOKENS,
    LOG_KIND,
    LOG_NS,
    LOG_PREEMPTED,
    LOG_REQUEST,
    LOG_RESUMED,
    LOG_ROWS,
    LOG_STEP,
    LOG_TOKENS,
    MAX_RUNNING,
    MUST_TELL,
    NEVER,
    NOW_NS,
    NUM_BLOCKS,
    NUM_COMPUTED,
    NUM_ENDED,
    NUM_FIRST_TOKENS,
    NUM_RUNNING,
    NUM_STEPS,
    NUM_TOKENS,
    NUM_WAITING,
    ROW_ADMITTED,
    ROW_COMPUTED_TOKENS,
    ROW_FREE_BLOCKS,
    ROW_HIT_TOKENS,
    ROW_LACKS_MEMORY,
    ROW_PREEMPTED,
    ROW_RUNNING,
    ROW_SCHEDULED_NS,
    ROW_SEQUENCES,
    ROW_TOKENS,
    ROW_UNFILLED_SLOTS,
    ROW_WAITING,
    RUN_ROWS,
    SECOND_ROWS,
    STEP_ROWS,
    TELLS_FIRST_TOKENS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable

_SECOND_NS = 10**9


@compilable
def note_step(loop: LoopArrays, flight: int, first_admitted: int, num_preempted: int, lacks_memory: bool) -> None:
    """``Recorder.schedule``: the row of a step that was just scheduled."""
    numbers, step = loop.numbers, loop.flights[flight]
    row = loop.step_rows[numbers[STEP_ROWS]]
    numbers[STEP_ROWS] += 1
    num_hit_tokens = 0
    start = flight * loop.settings[MAX_RUNNING]
    for place in range(start + first_admitted, start + step[BATCH_SIZE]):
        num_hit_tokens += loop.requests[loop.batches[place, IN_STEP], HIT_TOKENS]
    num_computed_tokens = num_blocks = 0
    for index in range(numbers[NUM_RUNNING]):
        request = loop.running[index]
        num_computed_tokens += loop.requests[request, NUM_COMPUTED]
        num_blocks += loop.requests[request, NUM_BLOCKS]
    row[ROW_SCHEDULED_NS] = numbers[NOW_NS]
    row[ROW_SEQUENCES] = step[BATCH_SIZE]
    row[ROW_TOKENS] = step[BATCH_TOKENS]
    row[ROW_ADMITTED] = step[BATCH_SIZE] - first_admitted
    row[ROW_PREEMPTED] = num_preempted
    row[ROW_HIT_TOKENS] = num_hit_tokens
    row[ROW_RUNNING] = numbers[NUM_RUNNING]
    row[ROW_WAITING] = numbers[NUM_WAITING]
    row[ROW_FREE_BLOCKS] = loop.pool.counts[NUM_FREE]
    row[ROW_LACKS_MEMORY] = 1 if lacks_memory else 0
    row[ROW_COMPUTED_TOKENS] = num_computed_tokens
    row[ROW_UNFILLED_SLOTS] = num_blocks * loop.settings[BLOCK_SIZE] - num_computed_tokens


@compilable
def note_run(loop: LoopArrays, start_ns: int, end_ns: int) -> None:
    """``Recorder.run``."""
    row = loop.numbers[RUN_ROWS]
    loop.run_rows[row, 0] = start_ns
    loop.run_rows[row, 1] = end_ns
    loop.numbers[RUN_ROWS] += 1


@compilable
def note_token(loop: LoopArrays, request: int) -> int:
    """``Recorder.process`` with a request's next token; 0 if it belongs to the warm-up."""
    row, now_ns = loop.requests[request], loop.numbers[NOW_NS]
    if row[FIRST_TOKEN_NS] == NEVER:
        row[FIRST_TOKEN_NS] = now_ns
        if loop.settings[TELLS_FIRST_TOKENS]:
            loop.first_tokens[loop.numbers[NUM_FIRST_TOKENS]] = request
            loop.numbers[NUM_FIRST_TOKENS] += 1
    elif not row[IS_WARM_UP]:
        _note_latency(loop, now_ns - row[LAST_TOKEN_NS])
    row[LAST_TOKEN_NS] = now_ns
    return 0 if row[IS_WARM_UP] else 1


@compilable
def _note_latency(loop: LoopArrays, latency_ns: int) -> None:
    last = loop.numbers[LATENCY_ROWS] - 1
    if last >= 0 and loop.latencies[last, 0] == latency_ns:
        loop.latencies[last, 1] += 1
        return
    loop.latencies[last + 1, 0] = latency_ns
    loop.latencies[last + 1, 1] = 1
    loop.numbers[LATENCY_ROWS] += 1


@compilable
def note_delivered(loop: LoopArrays, num_tokens: int) -> None:
    """``Recorder.process``: output tokens of a second."""
    if num_tokens == 0:
        return
    second = loop.numbers[NOW_NS] // _SECOND_NS
    last = loop.numbers[SECOND_ROWS] - 1
    if last >= 0 and loop.seconds[last, 0] == second:
        loop.seconds[last, 1] += num_tokens
        return
    loop.seconds[last + 1, 0] = second
    loop.seconds[last + 1, 1] = num_tokens
    loop.numbers[SECOND_ROWS] += 1


@compilable
def note_key(loop: LoopArrays, block: int, key: int) -> None:
    """``PoolListener.registered``, or ``evicted`` where ``block`` is negative."""
    row = loop.numbers[KEY_ROWS]
    loop.key_changes[row, CHANGED_BLOCK] = block
    loop.key_changes[row, CHANGED_KEY] = key
    loop.numbers[KEY_ROWS] += 1


@compilable
def _log(loop: LoopArrays, kind: int, request: int) -> int:
    row = loop.numbers[LOG_ROWS]
    loop.numbers[LOG_ROWS] += 1
    loop.log[row, LOG_KIND] = kind
    loop.log[row, LOG_NS] = loop.numbers[NOW_NS]
    loop.log[row, LOG_REQUEST] = request
    loop.log[row, LOG_STEP] = loop.numbers[NUM_STEPS]
    return row


@compilable
def log_admitted(loop: LoopArrays, request: int, was_preempted: int) -> None:
    """An entry of ``Step.admitted``."""
    row = _log(loop, LOG_ADMITTED, request)
    loop.log[row, LOG_TOKENS] = loop.requests[request, NUM_TOKENS]
    loop.log[row, LOG_HIT_TOKENS] = loop.requests[request, HIT_TOKENS]
    loop.log[row, LOG_RESUMED] = was_preempted


@compilable
def log_preempted(loop: LoopArrays, request: int) -> None:
    """An entry of ``Step.preempted``."""
    row = _log(loop, LOG_PREEMPTED, request)
    loop.log[row, LOG_TOKENS] = loop.requests[request, HIGHEST_COMPUTED]


@compilable
def collect_ended(loop: LoopArrays) -> int:
    """``Scheduler.take_ended``: move who ended to the log; 0: nobody, 1: somebody, 2: somebody that is waited for."""
    numbers = loop.numbers
    found = 0
    for index in range(numbers[NUM_ENDED]):
        request = loop.ended[index]
        _log(loop, LOG_ENDED, request)
        found = max(found, 1 + loop.requests[request, MUST_TELL])
    numbers[NUM_ENDED] = 0
    return found
