"""How long a step takes, from numbers that a step-time model gives (:mod:`kvtwin.sim.step_costs`).

The same operations on floats in the same order as in the model's own ``duration_ns``, so that not a bit differs.
"""

from __future__ import annotations

from collections.abc import MutableSequence

from kvtwin.engine.compiled.loop.state import (
    MAX_RUNNING,
    NUM_WINDOWS,
    SERVER,
    STEP_TIME,
    TOO_LONG,
    VARIED,
    LoopArrays,
)
from kvtwin.engine.compiled.marks import compilable

LINEAR, ROOFLINE, CALIBRATED, TABULATED = range(4)
"""Forms of a model: values of the setting ``STEP_TIME``."""

LONGEST_DIVIDED = 0.03
LONGEST_BESIDE_PROMPTS = 4.0
"""As how many sequences the longest one counts: for each of them where contexts are divided; beside prompts."""

ROOFLINE_CONSTANTS = 6
"""Of the roofline, and of tables: the last three are those of ``DecodeAttention``, and the one before says where the
table by sampled tokens begins behind the one by tokens."""
WINDOW_NUMBERS = 4
SURFACE_NUMBERS = 2
"""Before a surface's columns: how many there are, and how many numbers of a row it has places of."""
CALIBRATED_CONSTANTS = 5
ADJUSTMENT = 4
"""Where, in the constants of the server, those of ``AdjustedStepTime`` begin: both scales, and what is added."""

SERVER_CONSTANTS = 7
NO_WINDOW = -1.0
DRAW_FACTOR, DRAW_MODULUS = 48_271, 2**31 - 1
_TOO_LONG_NS = 2.0**63


@compilable
def duration_ns(
    loop: LoopArrays,
    sequences: int,
    decodes: int,
    prefill_tokens: int,
    context_tokens: int,
    pairs: int,
    sampled: int,
    longest: int,
) -> int:
    """``StepTimeModel.duration_ns``, or ``TOO_LONG``."""
    form = loop.settings[STEP_TIME]
    if form == LINEAR:
        time = _linear(loop, sequences, prefill_tokens, context_tokens, pairs)
    elif form == ROOFLINE:
        time = _roofline(loop, sequences, decodes, prefill_tokens, context_tokens, pairs, sampled, longest)
    elif form == CALIBRATED:
        time = _calibrated(loop, sequences, decodes, prefill_tokens, context_tokens, pairs, sampled)
    else:
        time = _tabulated(loop, sequences, decodes, prefill_tokens, context_tokens, pairs, sampled, longest)
    if time >= _TOO_LONG_NS:
        return TOO_LONG
    duration = int(round(time))  # noqa: RUF046 - to machine code, round gives a float
    if loop.settings[SERVER]:
        time = _with_server(loop, loop.settings[SERVER], duration, sequences, decodes, prefill_tokens, sampled)
        if time >= _TOO_LONG_NS:
            return TOO_LONG
        duration = int(round(time))  # noqa: RUF046
    if loop.settings[VARIED]:
        time = varied_factor(loop.costs, loop.settings[VARIED]) * duration
        if time >= _TOO_LONG_NS:
            return TOO_LONG
        duration = int(round(time))  # noqa: RUF046
    return duration


@compilable
def varied_factor(numbers: MutableSequence[float], first: int) -> float:
    """What ``VariedStepTime`` multiplies the next step with; of its three numbers the last is changed with each draw.

    The draws are those of Park and Miller's generator: 48271 times the last one, modulo 2^31 - 1.
    """
    draw = int(numbers[first + 2]) * DRAW_FACTOR % DRAW_MODULUS
    numbers[first + 2] = float(draw)
    return numbers[first] * (1.0 + numbers[first + 1] * (2.0 * draw / DRAW_MODULUS - 1.0))


@compilable
def _with_server(
    loop: LoopArrays, server: int, device: int, sequences: int, decodes: int, prefill_tokens: int, sampled: int
) -> float:
    """``ServerStepTime``, and ``AdjustedStepTime``: what is sent stands in tables, by tokens and by sampled tokens."""
    costs = loop.costs
    first = server + SERVER_CONSTANTS
    tokens = decodes + prefill_tokens
    time = device + int(costs[first + tokens]) + int(costs[first + int(costs[server + 3]) + sampled])
    host = int(costs[server]) + int(costs[server + 1]) * sequences
    time = max(time, host) if costs[server + 2] else time + host
    scale = costs[server + ADJUSTMENT + (1 if prefill_tokens else 0)]
    return scale * time + costs[server + ADJUSTMENT + 2]


@compilable
def _linear(loop: LoopArrays, sequences: int, prefill_tokens: int, context_tokens: int, pairs: int) -> float:
    """``LinearStepTime``."""
    step, prefill, context, sequence, pair = loop.costs[0], loop.costs[1], loop.costs[2], loop.costs[3], loop.costs[4]
    return step + prefill * prefill_tokens + context * context_tokens + sequence * sequences + pair * pairs


@compilable
def _roofline(
    loop: LoopArrays,
    sequences: int,
    decodes: int,
    prefill_tokens: int,
    context_tokens: int,
    pairs: int,
    sampled: int,
    longest: int,
) -> float:
    """``RooflineStepTime``; what tokens and sampled tokens take by themselves stands in tables, by their numbers."""
    costs, num_windows = loop.costs, loop.settings[NUM_WINDOWS]
    written, state, beside_prompts = costs[0], costs[1], costs[3]
    tokens = decodes + prefill_tokens
    first_token = ROOFLINE_CONSTANTS + WINDOW_NUMBERS * num_windows
    total = costs[first_token + tokens] + costs[first_token + int(costs[2]) + sampled]
    read = written * tokens + state * sequences
    arithmetic = 0.0
    for index in range(num_windows):
        first = ROOFLINE_CONSTANTS + WINDOW_NUMBERS * index
        window, context, decode_pair, prefill_pair = costs[first], costs[first + 1], costs[first + 2], costs[first + 3]
        if window == NO_WINDOW:
            read += context * context_tokens
            if beside_prompts and decodes:
                reads = _decode_context(sequences, decodes, prefill_tokens, context_tokens, pairs)
                read += context * _extra_tokens(loop, decodes, prefill_tokens, reads, longest)
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
def _extra_tokens(loop: LoopArrays, decodes: int, prefill_tokens: int, context: float, longest: int) -> float:
    """``DecodeAttention.extra_tokens``."""
    beside_prompts, undivided, undivided_from = loop.costs[3], loop.costs[4], loop.costs[5]
    longer = max(longest - context / decodes, 0.0)
    if prefill_tokens:
        uneven = min(float(decodes), LONGEST_BESIDE_PROMPTS) * longer
        return (beside_prompts - 1) * context + beside_prompts * uneven
    if decodes >= undivided_from:
        return min(float(decodes), undivided) * longer
    return LONGEST_DIVIDED * decodes * longer


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


@compilable
def _tabulated(
    loop: LoopArrays,
    sequences: int,
    decodes: int,
    prefill_tokens: int,
    context_tokens: int,
    pairs: int,
    sampled: int,
    longest: int,
) -> float:
    """``TabulatedStepTime``; what tokens and sampled tokens take is read off beforehand, by their numbers."""
    costs = loop.costs
    total = costs[ROOFLINE_CONSTANTS + decodes + prefill_tokens] + costs[ROOFLINE_CONSTANTS + int(costs[2]) + sampled]
    if decodes:
        context = _decode_context(sequences, decodes, prefill_tokens, context_tokens, pairs)
        if costs[3]:
            context += _extra_tokens(loop, decodes, prefill_tokens, context, longest)
        total += _on_surface(loop, int(costs[0]), decodes, context / decodes)
    if prefill_tokens:
        total += _on_surface(loop, int(costs[1]), prefill_tokens, pairs / prefill_tokens)
    return total


@compilable
def _on_surface(loop: LoopArrays, first: int, row: int, column: float) -> float:
    """``Surface.at``: a whole number's place among the rows was looked up beforehand."""
    costs = loop.costs
    num_columns = int(costs[first])
    columns = first + SURFACE_NUMBERS
    rows = columns + num_columns
    place, part = 0, 0.0
    if column > costs[columns]:
        above = num_columns
        while above - place > 1:  # the last column that is not above
            middle = (place + above) // 2
            if costs[columns + middle] <= column:
                place = middle
            else:
                above = middle
        place = min(place, num_columns - 2)
        left = costs[columns + place]
        part = (column - left) / (costs[columns + place + 1] - left)
    one = rows + 2 * int(costs[first + 1]) + int(costs[rows + 2 * row]) * num_columns + place
    two = one + num_columns
    low = costs[one] + part * (costs[one + 1] - costs[one])
    high = costs[two] + part * (costs[two + 1] - costs[two])
    return low + costs[rows + 2 * row + 1] * (high - low)
