"""How long a step takes, from numbers that a step-time model gives (:mod:`kvtwin.sim.step_costs`).

The same operations on floats in the same order as in the model's own ``duration_ns``, so that not a bit differs.
"""

from __future__ import annotations

from kvtwin.engine.compiled.loop.state import MAX_RUNNING, NUM_WINDOWS, SERVER, STEP_TIME, TOO_LONG, LoopArrays
from kvtwin.engine.compiled.marks import compilable

LINEAR, ROOFLINE, CALIBRATED = range(3)
"""Forms of a model: values of the setting ``STEP_TIME``."""

ROOFLINE_CONSTANTS = 4
WINDOW_NUMBERS = 4
CALIBRATED_CONSTANTS = 5
SERVER_CONSTANTS = 4
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
    device = int(round(time))  # noqa: RUF046 - to machine code, round gives a float
    server = loop.settings[SERVER]
    return _with_server(loop, server, device, sequences, decodes + prefill_tokens, sampled) if server else device


@compilable
def _with_server(loop: LoopArrays, server: int, device: int, sequences: int, tokens: int, sampled: int) -> int:
    """``ServerStepTime``: what is sent stands in tables, by the numbers of tokens and of sampled tokens."""
    costs = loop.costs
    first = server + SERVER_CONSTANTS
    time = device + int(costs[first + tokens]) + int(costs[first + int(costs[server + 3]) + sampled])
    host = int(costs[server]) + int(costs[server + 1]) * sequences
    if costs[server + 2]:
        return max(time, host)
    return time + host


@compilable
def _linear(loop: LoopArrays, sequences: int, prefill_tokens: int, context_tokens: int, pairs: int) -> float:
    """``LinearStepTime``."""
    step, prefill, context, sequence, pair = loop.costs[0], loop.costs[1], loop.costs[2], loop.costs[3], loop.costs[4]
    return step + prefill * prefill_tokens + context * context_tokens + sequence * sequences + pair * pairs


@compilable
def _roofline(
    loop: LoopArrays, sequences: int, decodes: int, prefill_tokens: int, context_tokens: int, pairs: int, sampled: int
) -> float:
    """``RooflineStepTime``; what tokens and sampled tokens take by themselves stands in tables, by their numbers."""
    costs, num_windows = loop.costs, loop.settings[NUM_WINDOWS]
    written, state, beside_prompts = costs[0], costs[1], costs[2]
    tokens = decodes + prefill_tokens
    first_token = ROOFLINE_CONSTANTS + WINDOW_NUMBERS * num_windows
    total = costs[first_token + tokens] + costs[first_token + int(costs[3]) + sampled]
    read = written * tokens + state * sequences
    arithmetic = 0.0
    for index in range(num_windows):
        first = ROOFLINE_CONSTANTS + WINDOW_NUMBERS * index
        window, context, decode_pair, prefill_pair = costs[first], costs[first + 1], costs[first + 2], costs[first + 3]
        if window == NO_WINDOW:
            read += context * context_tokens
            if beside_prompts and prefill_tokens and decodes:
                read += (
                    context
                    * beside_prompts
                    * _decode_context(sequences, decodes, prefill_tokens, context_tokens, pairs)
                )
            arithmetic += decode_pair * context_tokens + prefill_pair * pairs
        else:
            seen = min(context_tokens, sequences * int(window) + prefill_tokens)
            read += context * seen
            arithmetic += decode_pair * seen + prefill_pair * min(pairs, prefill_tokens * int(window))
    total += read if read > arithmetic else arithmetic
    return total


@compilable
def _decode_context(sequences: int, decodes: int, prefill_tokens: int, context_tokens: int, pairs: int) -> float:
    """``StepShape.decode_context_tokens``."""
    others = sequences - decodes
    if not others or not prefill_tokens:
        return float(context_tokens)
    seen = pairs / prefill_tokens
    read = others * max(seen + (prefill_tokens / others - 1) / 2, prefill_tokens / others)
    return max(context_tokens - read, 0.0)


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
