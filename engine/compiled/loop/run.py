"""The engine's loop, from one event to the next (equals ``ServerSimulation._engine_loop`` and ``EngineCore``)."""

from __future__ import annotations

from kvtwin.engine.compiled.loop.ahead import answer, arrive, next_arrival_ns
from kvtwin.engine.compiled.loop.decide import schedule
from kvtwin.engine.compiled.loop.end import update
from kvtwin.engine.compiled.loop.records import collect_ended, note_delivered, note_run
from kvtwin.engine.compiled.loop.state import (
    BATCH_SIZE,
    BATCH_TOKENS,
    BLOCK_SIZE,
    BY_PRIORITY,
    DEVICE_FREE_NS,
    DURATION_NS,
    FIRST_WAITING,
    HAS_MOVED,
    HELD_NS,
    KEY_ROWS,
    LAST_NS,
    LATENCY_ROWS,
    LOG_ROWS,
    MAX_RUNNING,
    MAX_STEPS_IN_FLIGHT,
    MAY_DECIDE,
    MAY_RUN_AHEAD,
    NEXT_WAITING,
    NOBODY,
    NOW_NS,
    NUM_FINISHED,
    NUM_IN_FLIGHT,
    NUM_RUNNING,
    NUM_SAMPLES,
    NUM_TOKENS,
    NUM_WAITING,
    OLDEST_IN_FLIGHT,
    PHASE,
    RUN_ROWS,
    SECOND_ROWS,
    STEP_ROWS,
    STEPS_WITHOUT_OUTPUT,
    SUBMITTED_NS,
    TELLS_KEYS,
    THRESHOLD,
    TOKEN_BUDGET,
    TOO_LONG,
    WAKE_NS,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable

TO_SCHEDULE, SCHEDULED, RUNS, PROCESSED = range(4)
"""Values of ``PHASE``: what was done last of an iteration."""

WAKES_LATER, SOMEBODY_ENDED, IDLE, HANGS, NEEDS_ROOM, TOO_LATE, HELD = range(7)
"""Why :func:`run` came back: nothing happens before ``WAKE_NS``, and something else may; a request ended that is waited
for; only an arrival can change anything; requests preempt each other for ever; the tables are full; the time passes
292 years; a step is due that may not be decided yet."""

_PATIENCE_STEPS = 10_000
_PATIENCE_PREFILLS = 10
_SPARE_ROWS = 4


@compilable
def run(loop: LoopArrays, now_ns: int, until_ns: int) -> int:
    """Go on from ``now_ns``; steps that end before ``until_ns`` are run to their end. Returns why it came back."""
    numbers = loop.numbers
    numbers[NOW_NS] = max(numbers[NOW_NS], now_ns)
    while True:
        if numbers[PHASE] == TO_SCHEDULE:
            arrive(loop, numbers[NOW_NS])
            answer(loop, numbers[NOW_NS])
            if _makes_no_progress(loop):
                return HANGS
            if _needs_room(loop):
                return NEEDS_ROOM
            if numbers[NOW_NS] <= numbers[HELD_NS]:
                if not numbers[MAY_DECIDE]:
                    return HELD
                numbers[MAY_DECIDE] = 0
            numbers[HAS_MOVED] = 0
            numbers[PHASE] = SCHEDULED
            if _schedule_next(loop) == 2:
                return SOMEBODY_ENDED
        if numbers[PHASE] == SCHEDULED:
            numbers[PHASE] = PROCESSED
            if numbers[NUM_IN_FLIGHT] > 0 and not numbers[MAY_RUN_AHEAD]:
                if not _start_oldest(loop):
                    return TOO_LATE
                numbers[PHASE] = RUNS
        if numbers[PHASE] == RUNS:
            wake_ns = numbers[WAKE_NS]
            if wake_ns >= until_ns and wake_ns > now_ns:
                return WAKES_LATER
            answer(loop, wake_ns)
            numbers[NOW_NS] = wake_ns
            numbers[PHASE] = PROCESSED
            if _process_oldest(loop) == 2:
                return SOMEBODY_ENDED
        numbers[PHASE] = TO_SCHEDULE
        if not numbers[HAS_MOVED] and not _has_work_in_flight(loop):
            arrives_ns = next_arrival_ns(loop)
            if arrives_ns >= until_ns and arrives_ns > numbers[NOW_NS]:
                return IDLE
            answer(loop, arrives_ns)
            numbers[NOW_NS] = max(numbers[NOW_NS], arrives_ns)


@compilable
def _schedule_next(loop: LoopArrays) -> int:
    """``EngineCore.schedule_next`` and ``ServerSimulation._submit``; what ``collect_ended`` found."""
    numbers = loop.numbers
    numbers[MAY_RUN_AHEAD] = 0
    if numbers[NUM_RUNNING] + numbers[NUM_WAITING] + numbers[NUM_FINISHED] == 0:
        return 0
    num_changes = schedule(loop)
    newest = (numbers[OLDEST_IN_FLIGHT] + numbers[NUM_IN_FLIGHT] - 1) % 2
    if numbers[NUM_IN_FLIGHT] < loop.settings[MAX_STEPS_IN_FLIGHT]:
        has_requests = numbers[NUM_RUNNING] + numbers[NUM_WAITING] + numbers[NUM_FINISHED] > 0
        numbers[MAY_RUN_AHEAD] = 1 if loop.flights[newest, BATCH_TOKENS] > 0 or has_requests else 0
    ended = collect_ended(loop)
    if ended or num_changes > 0 or loop.flights[newest, BATCH_SIZE] > 0:
        numbers[HAS_MOVED] = 1
    return ended


@compilable
def _start_oldest(loop: LoopArrays) -> bool:
    """``ServerSimulation._collect_oldest``: when the loop goes on; False if no clock can show it."""
    numbers = loop.numbers
    step = loop.flights[numbers[OLDEST_IN_FLIGHT]]
    start_ns = max(numbers[DEVICE_FREE_NS], step[SUBMITTED_NS])
    if step[DURATION_NS] == TOO_LONG or step[DURATION_NS] > LAST_NS - start_ns:
        return False
    end_ns = start_ns + step[DURATION_NS]
    numbers[DEVICE_FREE_NS] = end_ns
    note_run(loop, start_ns, end_ns)
    numbers[WAKE_NS] = max(end_ns, numbers[NOW_NS])
    return True


@compilable
def _process_oldest(loop: LoopArrays) -> int:
    """``ServerSimulation._process_oldest``; what ``collect_ended`` found."""
    numbers = loop.numbers
    step = loop.flights[numbers[OLDEST_IN_FLIGHT]]
    if step[BATCH_SIZE] > 0:
        numbers[HAS_MOVED] = 1
    numbers[STEPS_WITHOUT_OUTPUT] = 0 if step[NUM_SAMPLES] > 0 else numbers[STEPS_WITHOUT_OUTPUT] + 1
    note_delivered(loop, update(loop))
    return collect_ended(loop)


@compilable
def _has_work_in_flight(loop: LoopArrays) -> bool:
    numbers = loop.numbers
    for index in range(numbers[NUM_IN_FLIGHT]):
        if loop.flights[(numbers[OLDEST_IN_FLIGHT] + index) % 2, BATCH_SIZE] > 0:
            return True
    return False


@compilable
def _makes_no_progress(loop: LoopArrays) -> bool:
    """``ServerSimulation._makes_no_progress``."""
    numbers = loop.numbers
    num_steps = numbers[STEPS_WITHOUT_OUTPUT]
    if num_steps < _PATIENCE_STEPS or num_steps % _PATIENCE_STEPS:
        return False
    chunk = loop.settings[TOKEN_BUDGET]
    if loop.settings[THRESHOLD]:
        chunk = min(chunk, loop.settings[THRESHOLD])
    num_prefill_steps = 0
    for index in range(numbers[NUM_RUNNING]):
        num_prefill_steps += loop.requests[loop.running[index], NUM_TOKENS] // chunk + 1
    request = numbers[FIRST_WAITING]
    while request != NOBODY:
        num_prefill_steps += loop.requests[request, NUM_TOKENS] // chunk + 1
        request = loop.requests[request, NEXT_WAITING]
    return bool(num_steps > _PATIENCE_PREFILLS * num_prefill_steps)


@compilable
def _needs_room(loop: LoopArrays) -> bool:
    """Whether an iteration might write more than the tables hold.

    In an iteration each live request is preempted, or admitted, at most once, and ends at most once.
    """
    numbers = loop.numbers
    num_live = numbers[NUM_RUNNING] + numbers[NUM_WAITING]
    return bool(
        len(loop.step_rows) - numbers[STEP_ROWS] < _SPARE_ROWS
        or len(loop.run_rows) - numbers[RUN_ROWS] < _SPARE_ROWS
        or len(loop.seconds) - numbers[SECOND_ROWS] < _SPARE_ROWS
        or len(loop.log) - numbers[LOG_ROWS] < 2 * num_live + _SPARE_ROWS
        or len(loop.latencies) - numbers[LATENCY_ROWS] < loop.settings[MAX_RUNNING] + _SPARE_ROWS
        or (loop.settings[TELLS_KEYS] and len(loop.key_changes) - numbers[KEY_ROWS] < most_key_changes(loop))
    )


@compilable
def most_key_changes(loop: LoopArrays) -> int:
    """At most so many blocks get or lose a key in an iteration.

    What the step computes fills blocks, and each request may fill one more, and one with its output. Whoever is
    preempted out of the step, which only happens by priority, leaves its place in it to others.
    """
    settings = loop.settings
    num_live = loop.numbers[NUM_RUNNING] + loop.numbers[NUM_WAITING]
    num_blocks = settings[TOKEN_BUDGET] // settings[BLOCK_SIZE] + 2 * num_live + 1
    return 2 * num_blocks * (1 + num_live) if settings[BY_PRIORITY] else 2 * num_blocks
