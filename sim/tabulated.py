"""A step-time model that looks durations up: kernels' times by size, measured by somebody, in tables.

A step is taken apart as such measurements are: everything that depends on its number of tokens alone, the output head,
the attention of what decodes, the attention of prompts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from kvtwin.engine.compiled.loop.step_time import ROOFLINE_CONSTANTS, TABULATED
from kvtwin.sim.decode_attention import DecodeAttention
from kvtwin.sim.step_costs import StepCosts
from kvtwin.sim.step_shape import StepShape


class Curve(NamedTuple):
    """Times at some sizes; on straight lines between them, and on along the last line above."""

    sizes: Sequence[float]
    """In ascending order, at least two."""
    times_ns: Sequence[float]

    def at(self, size: float) -> float:
        """The time at ``size``; below the smallest size, that one's."""
        index, share = _place(self.sizes, size)
        low = self.times_ns[index]
        return low + share * (self.times_ns[index + 1] - low)


class Surface(NamedTuple):
    """Times at pairs of sizes; bilinear between them, and on along the last lines above."""

    rows: Sequence[float]
    columns: Sequence[float]
    times_ns: Sequence[Sequence[float]]
    """A row for each of ``rows``, a time for each of ``columns``."""

    def at(self, row: float, column: float) -> float:
        """The time at a pair of sizes; below the smallest ones, theirs."""
        index, share = _place(self.rows, row)
        place, part = _place(self.columns, column)
        first, second = self.times_ns[index], self.times_ns[index + 1]
        low = first[place] + part * (first[place + 1] - first[place])
        high = second[place] + part * (second[place + 1] - second[place])
        return low + share * (high - low)

    def numbers(self, most: int) -> list[float]:
        """Itself for the compiled loop: columns, places of whole numbers up to ``most`` among the rows, and times."""
        places = (number for row in range(most + 1) for number in _place(self.rows, row))
        return [len(self.columns), most + 1, *self.columns, *places, *chain.from_iterable(self.times_ns)]


def _place(sizes: Sequence[float], size: float) -> tuple[int, float]:
    """The interval that ``size`` is in or after, and how far through it, from 0."""
    if size <= sizes[0]:
        return 0, 0.0
    index = min(bisect_right(sizes, size), len(sizes) - 1) - 1
    return index, (size - sizes[index]) / (sizes[index + 1] - sizes[index])


class StepTables(NamedTuple):
    """What :class:`TabulatedStepTime` looks up; times in ns, of all layers together."""

    tokens: Curve
    """By the step's tokens: matrices, norms, embedding, experts."""
    sampled: Curve
    """By sampled tokens: the output head."""
    decode: Surface
    """Attention of sequences that decode: by their number, and by the context of each, in the mean."""
    prefill: Surface
    """Attention of prompts: by their tokens in the step, and by the keys that each of these sees, in the mean."""


class TabulatedStepTime:
    """The sum of a step's four parts (:class:`StepTables`).

    A step says only sums (:class:`StepShape`). Where several prompts share it, their context is taken to be that of
    equally long ones, and the rest of the context to be the decoding sequences'. Sequences that decode count as equally
    long too. A step never takes less time when one of its requests grows, if the tables are :func:`rising_both_ways`.
    """

    def __init__(
        self,
        name: str,
        tables: StepTables,
        facts: Mapping[str, float | int | str],
        *,
        decode_attention: DecodeAttention | None = None,
        sampling_ns_per_token: float = 0.0,
        step_overhead_ns: int = 0,
    ) -> None:
        """``facts`` say where the tables come from. What the tables lack: how much longer attention takes for sequences
        that decode beside prompts or after contexts of unequal length, the time to draw a token, and the time of a step
        in which no kernel runs.
        """
        self.name = name
        self.tables = tables
        self._decode_attention = decode_attention
        self._sampling_ns = sampling_ns_per_token
        self._overhead_ns = step_overhead_ns
        self._facts = {
            **facts,
            "sampling_ns_per_token": round(sampling_ns_per_token),
            "step_overhead_ns": step_overhead_ns,
            "decode_attention_beside_prompts": decode_attention.beside_prompts if decode_attention else 1.0,
        }

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        if not shape.num_sequences:
            return 0
        tables, decodes, prefill_tokens = self.tables, shape.decode_sequences, shape.prefill_tokens
        total = self._overhead_ns + tables.tokens.at(shape.total_tokens)
        if shape.sampled_tokens:
            total += tables.sampled.at(shape.sampled_tokens) + self._sampling_ns * shape.sampled_tokens
        if decodes:
            context = shape.decode_context_tokens
            if self._decode_attention:
                context += self._decode_attention.extra_tokens(shape)
            total += tables.decode.at(decodes, context / decodes)
        if prefill_tokens:
            total += tables.prefill.at(prefill_tokens, shape.prefill_attention_pairs / prefill_tokens)
        return round(total)

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts:
        """Constants, what tokens and sampled tokens take by their numbers, then both surfaces."""
        tables, attention = self.tables, self._decode_attention or (0, 0, 0)
        by_tokens = [self._overhead_ns + tables.tokens.at(tokens) for tokens in range(most_tokens + 1)]
        by_sampled = [0.0] + [
            tables.sampled.at(sampled) + self._sampling_ns * sampled for sampled in range(1, most_sequences + 1)
        ]
        decode = tables.decode.numbers(most_sequences)
        first = ROOFLINE_CONSTANTS + len(by_tokens) + len(by_sampled)
        constants = [first, first + len(decode), most_tokens + 1, *attention]
        numbers = [*constants, *by_tokens, *by_sampled, *decode, *tables.prefill.numbers(most_tokens)]
        return StepCosts(TABULATED, array("d", numbers))

    def describe(self) -> dict[str, float | int | str]:
        """Where the times come from."""
        return {"model": self.name, **self._facts}


def rising(times: Sequence[float]) -> list[float]:
    """Times that do not fall: the middle between the largest before and the smallest behind, each included."""
    before = accumulate(times, max)
    behind = reversed(list(accumulate(reversed(times), min)))
    return [(low + high) / 2 for low, high in zip(before, behind, strict=True)]


def rising_both_ways(table: Sequence[Sequence[float]]) -> list[list[float]]:
    """A table that falls neither along its rows nor along its columns."""
    rows = [rising(row) for row in table]
    columns = [rising(column) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def is_rising(times: Sequence[float]) -> bool:
    """Whether no time is smaller than the one before it."""
    return all(before <= after for before, after in pairwise(times))
