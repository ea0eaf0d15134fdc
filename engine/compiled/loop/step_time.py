"""How long a step takes, from numbers that a step-time model gives (:mod:`kvtwin.sim.step_costs`).

The same operations on floats in the same order as in the model's own ``duration_ns``, so that not a bit differs.
"""

from __future__ import annotations

from kvtwin.engine.compiled.loop.state import MAX_RUNNING, NUM_WINDOWS, STEP_TIME, TOO_LONG, LoopArrays
from kvtwin.engine.compiled.marks import compilable

LINEAR, ROOFLINE, CALIBRATED = range(3)
"""Forms of a model: values of the setting ``STEP_TIME``."""

ROOFLINE_CONSTANTS = 8
WINDOW_NUMBERS = 4
CALIBRATED_CONSTANTS = 5
NO_WINDOW = -1.0
_TOO_LONG_NS = 2.0**63


@compilable
def duration_ns(
    loop: LoopArrays, sequences: int, decodes: int, prefill_tokens: int, context_tokens: int, pairs: int, sampled: int
) -> int:
    """``StepTimeModel.duration_ns``, or ``TOO_LONG``."""
    form = loop.settings[STEP_TIME]
    if form == LINEAR:
        time = _linear(loop, sequences, prefill_tokens, context_tokens, pairs)
    elif form == ROOFLINE:
        time = _roofline(loop, sequences, decodes, prefill_tokens, context_tokens, pairs, sampled)
    else:
        time = _calibrated(loop, sequences, decodes, prefill_tokens, context_tokens, pairs, sampled)
    if time >= _TOO_LONG_NS:
        return TOO_LONG
    return int(round(time))  # noqa: RUF046 - to machine code, round gives a float


@compilable
def _linear(loop: LoopArrays, sequences: int, prefill_tokens: int, context_tokens: int, pairs: int) -> float:
    """``LinearStepTime``."""
    step, prefill, context, sequence, pair = loop.costs[0], loop.costs[1], loop.costs[2], loop.costs[3], loop.costs[4]
    return step + prefill * prefill_tokens + context * context_tokens + sequence * sequences + pair * pairs


@compilable
def _roofline(
    loop: LoopArrays, sequences: int, decodes: int, prefill_tokens: int, context_tokens: int, pairs: int, sampled: int
) -> float:
    """``RooflineStepTime``; what is read of the matrices stands in a table, by the number of tokens."""
    costs, num_windows = loop.costs, loop.settings[NUM_WINDOWS]
    fixed, token_gemm, head, sampled_gemm = costs[0], costs[1], costs[2], costs[3]
    written, state, token_link = costs[4], costs[5], costs[6]
    tokens = decodes + prefill_tokens
    read = costs[ROOFLINE_CONSTANTS + WINDOW_NUMBERS * num_windows + tokens]
    arithmetic = token_gemm * tokens
    total = fixed + (read if read > arithmetic else arithmetic)
    if sampled:
        arithmetic = sampled_gemm * sampled
        total += head if head > arithmetic else arithmetic
    read = written * tokens + state * sequences
    arithmetic = 0.0
    for index in range(num_windows):
        first = ROOFLINE_CONSTANTS + WINDOW_NUMBERS * index
        window, context, decode_pair, prefill_pair = costs[first], costs[first + 1], costs[first + 2], costs[first + 3]
        if window == NO_WINDOW:
            read += context * context_tokens
            arithmetic += decode_pair * context_tokens + prefill_pair * pairs
        else:
            seen = min(context_tokens, sequences * int(window) + prefill_tokens)
            read += context * seen
            arithmetic += decode_pair * seen + prefill_pair * min(pairs, prefill_tokens * int(window))
    total += read if read > arithmetic else arithmetic
    return total + token_link * tokens


@compilable
def _calibrated(
    loop: LoopArrays, sequences: int, decodes: int, prefill_tokens: int, context_tokens: int, pairs: int, sampled: int
) -> float:
    """``CalibratedStepTime``; its tables are read off beforehand, by the numbers of sequences and of tokens."""
    costs = loop.costs
    decode_context, context, pair, sequence, sample = costs[0], costs[1], costs[2], costs[3], costs[4]
    decode_time = 0.0
    if decodes:
        decode_time = costs[CALIBRATED_CONSTANTS + decodes] + decode_context * context_tokens
    if prefill_tokens == 0:
        return decode_time
    base = costs[CALIBRATED_CONSTANTS + 1 + loop.settings[MAX_RUNNING] + decodes + prefill_tokens]
    prefill_time = base + context * context_tokens + pair * pairs + sequence * sequences + sample * sampled
    return max(decode_time, prefill_time)
