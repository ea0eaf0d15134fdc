"""A step-time model fitted to measurements of one model on one device: what ``kvtwin calibrate`` writes."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from kvtwin.engine.compiled.loop.step_time import CALIBRATED
from kvtwin.sim.step_costs import StepCosts
from kvtwin.sim.step_shape import StepShape

MOST_NS = 1e15
"""The largest time that a file may state, eleven days: sums over a step stay finite."""

_KEYS = ("model", "decode", "prefill", "measured")
_DECODE = ("base_ns", "padded_up_to", "context_token_ns")
_PREFILL = ("base_ns", "context_token_ns", "pair_ns", "sequence_ns", "sampled_token_ns")


class CalibratedStepTime:
    """Steps that only decode, and all others, each with a table of base times and costs per unit on top.

    *Decode*: a base for the number of sequences, and a cost per context token. Batches of up to ``padded_up_to``
    sequences (a size of the table) are filled up to its sizes, as those of CUDA graphs are, and cost what the next size
    does; for others bases are interpolated.

    *Prefill*, a step with prompt tokens, alone or beside sequences that decode: a base for all tokens of the step,
    piecewise linear, and costs per context token, query-key pair of prompt tokens, sequence, and token that is sampled.
    Such a step takes at least as long as its decoding sequences would with all the context that the step reads.

    Tables go on with their last slope above their largest size, and are flat below their smallest. Nothing is negative
    and no table falls, so that a prediction never falls when a step grows.
    """

    name = "calibrated"

    def __init__(self, data: Mapping[str, Any]) -> None:
        """The model that a file states. ValueError: what is missing, unknown or out of range, and what is expected."""
        _check_keys("", data, _KEYS)
        decode, prefill, measured = (_mapping(data, key) for key in _KEYS[1:])
        _check_keys("decode.", decode, _DECODE)
        _check_keys("prefill.", prefill, _PREFILL)
        self._decode = _Table("decode.base_ns", decode["base_ns"])
        self._padded_up_to = decode["padded_up_to"]
        if isinstance(self._padded_up_to, bool) or self._padded_up_to not in (0, *self._decode.sizes):
            raise ValueError(f"decode.padded_up_to: expected 0 or a size of base_ns, got {self._padded_up_to!r}")
        self._decode_context = _nanoseconds("decode.context_token_ns", decode["context_token_ns"])
        self._prefill = _Table("prefill.base_ns", prefill["base_ns"])
        costs = [_nanoseconds(f"prefill.{key}", prefill[key]) for key in _PREFILL[1:]]
        self._context, self._pair, self._sequence, self._sample = costs
        self.measured = _facts(measured)
        """What was measured, where, when, and how well held-out steps were predicted."""

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        if shape.num_sequences == 0:
            return 0
        decode_ns = self._decode_ns(shape.decode_sequences, shape.context_tokens) if shape.decode_sequences else 0.0
        if shape.prefill_tokens == 0:
            return round(decode_ns)
        prefill_ns = (
            self._prefill.at(shape.total_tokens)
            + self._context * shape.context_tokens
            + self._pair * shape.prefill_attention_pairs
            + self._sequence * shape.num_sequences
            + self._sample * shape.sampled_tokens
        )
        return round(max(decode_ns, prefill_ns))

    def _decode_ns(self, num_sequences: int, context_tokens: int) -> float:
        is_padded = num_sequences <= self._padded_up_to
        base_ns = self._decode.at_next(num_sequences) if is_padded else self._decode.at(num_sequences)
        return base_ns + self._decode_context * context_tokens

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts:
        """Constants, then both tables at every size."""
        numbers = [self._decode_context, self._context, self._pair, self._sequence, self._sample]
        numbers += [self._decode_ns(sequences, 0) for sequences in range(most_sequences + 1)]
        numbers += [self._prefill.at(tokens) for tokens in range(most_tokens + 1)]
        return StepCosts(CALIBRATED, array("d", numbers))

    def describe(self) -> dict[str, float | int | str]:
        """The coefficients in nanoseconds, and what was measured where; tables as text."""
        costs = (self._context, self._pair, self._sequence, self._sample)
        return {
            "model": self.name,
            "decode_base_ns": str(self._decode),
            "decode_padded_up_to": self._padded_up_to,
            "decode_context_token_ns": self._decode_context,
            "prefill_base_ns": str(self._prefill),
            **{f"prefill_{key}": cost for key, cost in zip(_PREFILL[1:], costs, strict=True)},
            **{f"measured_{key}": value for key, value in self.measured.items()},
        }


class _Table:
    """Times at some sizes, in order; they do not fall."""

    def __init__(self, where: str, data: Any) -> None:
        if not isinstance(data, Mapping) or not data:
            raise ValueError(f"{where}: expected a mapping of sizes to nanoseconds, got {data!r}")
        for size in data:
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
                raise ValueError(f"{where}: expected whole numbers from 1 as sizes, got {size!r}")
        self.sizes = sorted(data)
        self._times: list[float] = [_nanoseconds(f"{where}: {size}", data[size]) for size in self.sizes]
        for size, (before, after) in zip(self.sizes[1:], pairwise(self._times), strict=True):
            if after < before:
                raise ValueError(f"{where}: expected times that do not fall, got {after} at {size} after {before}")

    def at(self, size: int) -> float:
        """The time at ``size``, on the line between its neighbours in the table."""
        sizes, times = self.sizes, self._times
        if size <= sizes[0] or len(sizes) == 1:
            return times[0]
        above = min(bisect_left(sizes, size), len(sizes) - 1)
        slope = (times[above] - times[above - 1]) / (sizes[above] - sizes[above - 1])
        time: float = times[above - 1] + slope * (size - sizes[above - 1])
        return min(time, times[above]) if size <= sizes[above] else max(time, times[above])

    def at_next(self, size: int) -> float:
        """The time at the smallest size of the table that is not below ``size``."""
        index = bisect_left(self.sizes, size)
        return self._times[index] if index < len(self.sizes) else self.at(size)

    def __str__(self) -> str:
        return ", ".join(f"{size}: {time:g}" for size, time in zip(self.sizes, self._times, strict=True))


def _mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not isinstance(data[key], Mapping):
        raise ValueError(f"{key}: expected a mapping, got {data[key]!r}")
    part: Mapping[str, Any] = data[key]
    return part


def _check_keys(where: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in known:
        if key not in data:
            raise ValueError(f"{where}{key}: expected, but missing")
    for key in data:
        if key not in known:
            raise ValueError(f"{where}{key}: unknown, expected only {', '.join(known)}")


def _nanoseconds(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where}: expected a number of nanoseconds, got {value!r}")
    if not (math.isfinite(value) and 0 <= value <= MOST_NS):
        raise ValueError(f"{where}: expected a number of nanoseconds from 0 to {MOST_NS:g}, got {value!r}")
    return float(value)


def _facts(measured: Mapping[str, Any]) -> dict[str, float | int | str]:
    for key, value in measured.items():
        if not isinstance(key, str) or not isinstance(value, str | int | float):
            raise ValueError(f"measured.{key}: expected text or a number, got {value!r}")
    return dict(measured)
