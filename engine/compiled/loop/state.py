"""The loop's memory: a row per request, a few numbers, and tables that it fills for the recorder."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import Any, NamedTuple

from kvtwin.engine.compiled.arrays import Ints, PoolArrays

# ---------------------------------------------------------------- a request's row: names as in engine/request.py

(
    PROMPT_TOKENS,
    MAX_TOTAL_TOKENS,
    STOP_TOKENS,  # known tokens with which an end-of-sequence token ends it; 0: none does
    PRIORITY,
    ARRIVAL_NS,
    RANK,  # among requests with the same arrival: in the order of their ids
    LORA,  # 0: none
    IS_WARM_UP,
    MUST_TELL,  # whether somebody waits for its end
    NUM_KEYS,  # keys that the plain engine would have made
    NUM_TOKENS,
    STATUS,
    REASON,
    NUM_COMPUTED,
    HIGHEST_COMPUTED,
    NUM_PLACEHOLDERS,
    NUM_IN_FLIGHT_SAMPLES,
    NUM_STEPS_IN_FLIGHT,
    IS_PREFILL_CHUNK,
    IS_DEFERRED,
    NUM_PREEMPTIONS,
    HIT_TOKENS,  # of its latest admission
    FIRST_BLOCK,  # where its keys and its block table begin in the arenas
    ROOM_BLOCKS,  # places it has there
    NUM_BLOCKS,  # length of its block table
    NUM_REGISTERED,
    NEXT_WAITING,
    PREVIOUS_WAITING,
    FIRST_TOKEN_NS,
    LAST_TOKEN_NS,
) = range(30)

NUM_FIELDS = 30

NUM_GIVEN = 10
"""Fields at the start of a row that are given with the request."""

WAITING, RUNNING, PREEMPTED, FINISHED = range(4)
"""Values of ``STATUS``."""

NONE, STOP, LENGTH, CAPACITY, STUCK = range(5)
"""Values of ``REASON``; ``STUCK``: not even the idle engine can admit it."""

NOBODY = -1
"""No request."""

NEVER = -1
"""A time that did not come."""

MOST = 2**62
"""More than any number of tokens."""

LAST_NS = 2**63 - 1
"""The end of time."""

TOO_LONG = -1
"""A duration that no clock can show."""

# ---------------------------------------------------------------- settings, under the engine's names

(
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    TOKEN_BUDGET,
    MAX_BATCHED_TOKENS,
    WATERMARK_BLOCKS,
    MAX_STEPS_IN_FLIGHT,
    THRESHOLD,
    PREFILL_INTERVAL,
    MAX_LORAS,
    IS_ASYNC,
    IS_STRICT,
    IS_ADAPTIVE,
    BY_PRIORITY,
    CACHES,
    CHUNKS,
    RESERVES_ALL,
    STEP_TIME,
    NUM_WINDOWS,
    SERVER,
    VARIED,
    TELLS_KEYS,  # whether somebody follows which keys blocks get and lose
    TELLS_FIRST_TOKENS,  # whether somebody waits for the first tokens of requests
) = range(23)

NUM_SETTINGS = 23

# ---------------------------------------------------------------- numbers that change

(
    NOW_NS,
    HELD_NS,  # up to then no step is decided, but for the next one if
    MAY_DECIDE,  # says so
    DEVICE_FREE_NS,
    WAKE_NS,
    PHASE,
    HAS_MOVED,
    NUM_RUNNING,
    NUM_WAITING,
    FIRST_WAITING,
    LAST_WAITING,
    NUM_FINISHED,  # since the latest step
    NUM_ENDED,  # of which the recorder was not told
    NUM_IN_FLIGHT,
    OLDEST_IN_FLIGHT,
    MAY_RUN_AHEAD,
    STEPS_WITHOUT_OUTPUT,
    HOLDS_PREFILL,
    STEPS_TO_HOLD,
    LEFT_A_BACKLOG,
    CHUNK_LIMIT,
    NUM_ACTIVE_LORAS,
    NUM_PHANTOMS,
    PHANTOM_TOKENS,  # of the latest lookup
    NUM_STEPS,
    NUM_SCHEDULED_TOKENS,
    NUM_RECOMPUTED_TOKENS,
    NUM_PREEMPTED,
    NUM_PHANTOM_HIT_TOKENS,
    STEP_ROWS,
    RUN_ROWS,
    LOG_ROWS,
    LATENCY_ROWS,
    SECOND_ROWS,
    KEY_ROWS,
    NUM_FIRST_TOKENS,  # of which nobody was told
    NEXT_ARRIVAL,
    NUM_ARRIVALS,
    NEXT_QUESTION,
    NUM_QUESTIONS,
) = range(40)

NUM_NUMBERS = 40

# ---------------------------------------------------------------- tables

(IN_STEP, IN_TOKENS, IN_SAMPLES) = range(3)
"""Columns of ``batches``: request, tokens to compute, whether the step samples for it."""

(BATCH_SIZE, BATCH_TOKENS, SUBMITTED_NS, DURATION_NS, NUM_SAMPLES) = range(5)
"""Columns of ``flights``."""

(
    ROW_SCHEDULED_NS,
    ROW_SEQUENCES,
    ROW_TOKENS,
    ROW_ADMITTED,
    ROW_PREEMPTED,
    ROW_HIT_TOKENS,
    ROW_RUNNING,
    ROW_WAITING,
    ROW_FREE_BLOCKS,
    ROW_LACKS_MEMORY,
    ROW_COMPUTED_TOKENS,
    ROW_UNFILLED_SLOTS,
) = range(12)
"""Columns of ``step_rows``, as the recorder has them."""

STEP_COLUMNS = (
    *("scheduled_ns", "sequences", "tokens", "admitted", "preempted", "hit_tokens", "running", "waiting"),
    *("free_blocks", "lacks_memory", "computed_tokens", "unfilled_slots"),
)

(LOG_KIND, LOG_NS, LOG_REQUEST, LOG_TOKENS, LOG_HIT_TOKENS, LOG_RESUMED, LOG_STEP) = range(7)
"""Columns of ``log``."""

LOG_PREEMPTED, LOG_ADMITTED, LOG_ENDED = range(3)
"""Values of ``LOG_KIND``."""

(CHANGED_BLOCK, CHANGED_KEY) = range(2)
"""Columns of ``key_changes``: a block, and the key that it got; minus the block, where it lost it."""

(ARRIVES_NS, ARRIVING) = range(2)
"""Columns of ``arrivals``."""

(ASKED_NS, ASKED_MOST_BLOCKS, ASKED_FIRST_RUN, ASKED_NUM_RUNS) = range(4)
"""Columns of ``questions``: when, how much of the prompt, and where in ``question_runs`` its keys stand."""

COLUMNS = {
    "requests": NUM_FIELDS,
    "flights": 5,
    "batches": 3,
    "step_rows": 12,
    "run_rows": 2,
    "log": 7,
    "latencies": 2,
    "seconds": 2,
    "key_changes": 2,
    "arrivals": 2,
    "questions": 4,
}
"""Of the tables among the fields of ``LoopArrays``."""

Table = Any
"""A two-dimensional array of 64-bit ints."""


class LoopArrays(NamedTuple):
    """All of it. The arenas hold a stretch for each live request."""

    pool: PoolArrays
    settings: Ints
    numbers: Ints
    requests: Table
    keys: Ints
    """Arena: the keys of a request's blocks, also of those that it does not have yet."""
    tables: Ints
    """Arena: block tables."""
    running: Ints
    passed_over: Ints
    ended: Ints
    lora_holders: Ints
    """Per adapter, the running requests that have it."""
    phantoms: Ints
    """Per block, whether it has a key and was never filled."""
    lost_keys: Ints
    """Room for what :func:`kvtwin.engine.compiled.pool_functions.allocate` says."""
    flights: Table
    """The steps in flight, two rows used in turn."""
    batches: Table
    """Of the first, then of the second: a row per request."""
    step_rows: Table
    run_rows: Table
    """Start and end of each step."""
    log: Table
    """What became of requests, in order."""
    latencies: Table
    """Time since the token before, and how often."""
    seconds: Table
    """A second since the start, and output tokens delivered in it."""
    key_changes: Table
    """Keys that blocks got and lost, in order, if somebody follows them."""
    first_tokens: Ints
    """Requests whose first token was delivered, if somebody waits for that."""
    arrivals: Table
    """Requests that are known beforehand, in order, those that have arrived among them."""
    questions: Table
    """How much of a prompt is cached at an instant: in order of the instants."""
    question_runs: Ints
    """Keys of blocks: the first key, the step to the next one, and how many there are."""
    answers: Ints
    """Of each question, the leading blocks that are cached."""
    costs: MutableSequence[float]
    """Of the step-time model."""
