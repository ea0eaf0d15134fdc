"""The coefficients of the calibrated step-time model, fitted to measured steps.

Nonnegative least squares on relative errors (Lawson and Hanson, 1974): a step of a millisecond counts as much as one
of a second, and no cost is negative. Tables are fitted by their increments, so that they do not fall.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from kvtwin.sim.calibrated import CalibratedStepTime
from kvtwin.sim.step_shape import StepShape

HELD_OUT = 0.3
"""Share of the shapes that the error is measured on."""

SEED = 0
"""Of the draw of these shapes."""

LEAST_SHAPES = 5
"""Fewest different shapes, of those that only decode and of the others each, that a fit makes sense of."""

_LEAST_PER_SEGMENT = 3
"""Fewest shapes between two sizes of a table."""

_DECODE_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_TOKEN_SIZES = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Where slopes may change in tables that are interpolated, as far as there are measurements around."""


class MeasuredStep(NamedTuple):
    """What was run, and how long it took."""

    shape: StepShape
    num_padded_sequences: int
    """Sequences that the device computed for, those that only fill a batch up included."""
    duration_ns: float


class HoldOutError(NamedTuple):
    """Errors of predicted durations relative to measured ones, without sign, on shapes that the fit did not see."""

    num_shapes: int
    median: float
    p90: float
    max: float


class Calibration(NamedTuple):
    """Coefficients as :class:`CalibratedStepTime` takes them, and how well such a fit predicts what it has not seen."""

    coefficients: dict[str, Any]
    decode_error: HoldOutError
    prefill_error: HoldOutError
    num_shapes: int

    def step_time(self, measured: dict[str, Any] | None = None) -> CalibratedStepTime:
        """The model, with a record of the measurement."""
        return CalibratedStepTime({**self.coefficients, "measured": measured or {}})


def calibrate(steps: Sequence[MeasuredStep]) -> Calibration:
    """Fit all ``steps``; errors come from a fit to 70 % of the shapes. ValueError: there are too few shapes.

    Of several steps of one shape the median counts. What the device pads is seen from the steps.
    """
    rows = _medians(steps)
    decode = [row for row in rows if _only_decodes(row)]
    prefill = [row for row in rows if not _only_decodes(row)]
    padded_up_to = max(
        (row.num_padded_sequences for row in decode if row.num_padded_sequences > row.shape.num_sequences), default=0
    )
    for kind, part in (("steps that only decode", decode), ("steps with prompt tokens", prefill)):
        if len(part) < LEAST_SHAPES:
            raise ValueError(f"expected at least {LEAST_SHAPES} different {kind}, got {len(part)}")
    draw = np.random.default_rng(SEED)
    seen_decode, held_out_decode = _split(decode, draw)
    seen_prefill, held_out_prefill = _split(prefill, draw)
    trial = CalibratedStepTime({**_fit(seen_decode, seen_prefill, padded_up_to), "measured": {}})
    return Calibration(
        _fit(decode, prefill, padded_up_to),
        _errors(trial, held_out_decode),
        _errors(trial, held_out_prefill),
        len(rows),
    )


def _only_decodes(step: MeasuredStep) -> bool:
    return step.shape.prefill_tokens == 0


def _medians(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    durations = defaultdict(list)
    for step in steps:
        if step.shape.num_sequences and step.duration_ns > 0:
            durations[step.shape, step.num_padded_sequences].append(step.duration_ns)
    return [MeasuredStep(*shape, float(np.median(times))) for shape, times in durations.items()]


def _split(rows: list[MeasuredStep], draw: np.random.Generator) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Rows to fit, and rows held out."""
    shuffled = [rows[index] for index in draw.permutation(len(rows))]
    num_held_out = round(HELD_OUT * len(rows))
    return shuffled[num_held_out:], shuffled[:num_held_out]


def _fit(decode: list[MeasuredStep], prefill: list[MeasuredStep], padded_up_to: int) -> dict[str, Any]:
    """The parts of the model's file that are fitted."""
    if padded_up_to:
        batches = np.array([row.num_padded_sequences for row in decode])
        sizes = sorted({int(size) for size in batches})
        table = _reached(batches, sizes)
    else:
        batches = np.array([row.shape.num_sequences for row in decode])
        sizes = _sizes(batches, _DECODE_SIZES)
        table = _slopes(batches, sizes)
    increments, (context_ns,) = _solve(decode, table, [[row.shape.context_tokens for row in decode]])
    tokens = np.array([row.shape.total_tokens for row in prefill])
    token_sizes = _sizes(tokens, _TOKEN_SIZES)
    units = [
        [row.shape.context_tokens for row in prefill],
        [row.shape.prefill_attention_pairs for row in prefill],
        [row.shape.num_sequences for row in prefill],
        [row.shape.sampled_tokens for row in prefill],
    ]
    token_increments, costs = _solve(prefill, _slopes(tokens, token_sizes), units)
    names = ("context_token_ns", "pair_ns", "sequence_ns", "sampled_token_ns")
    return {
        "model": CalibratedStepTime.name,
        "decode": {
            "base_ns": _table(sizes, increments),
            "padded_up_to": max((size for size in sizes if size <= padded_up_to), default=0),
            "context_token_ns": _rounded(context_ns),
        },
        "prefill": {
            "base_ns": _table(token_sizes, token_increments),
            **{name: _rounded(cost) for name, cost in zip(names, costs, strict=True)},
        },
    }


def _sizes(values: np.ndarray, candidates: Sequence[int]) -> list[int]:
    """Sizes for a table of ``values``: the smallest, and candidates with enough rows below and above."""
    sizes = [int(values.min())]
    for size in candidates:
        num_below = np.count_nonzero((values > sizes[-1]) & (values <= size))
        if num_below >= _LEAST_PER_SEGMENT and np.count_nonzero(values > size) >= _LEAST_PER_SEGMENT:
            sizes.append(size)
    if values.max() > sizes[-1]:
        sizes.append(int(values.max()))
    return sizes


def _slopes(values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Per row, the share of each increment of an interpolated table that it has; the first is the base of all."""
    columns = [np.ones(len(values))]
    columns += [np.clip((values - low) / (high - low), 0, 1) for low, high in pairwise(sizes)]
    return np.column_stack(columns)


def _reached(values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """The same for a table that is not interpolated."""
    return (values[:, None] >= np.array(sizes)).astype(float)


def _solve(rows: list[MeasuredStep], table: np.ndarray, units: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Increments of the table, and the cost of each unit."""
    from scipy.optimize import nnls

    matrix = np.column_stack([table, *(np.array(unit, dtype=float) for unit in units)])
    matrix /= np.array([row.duration_ns for row in rows])[:, None]
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1
    solution, _ = nnls(matrix / scale, np.ones(len(rows)))
    solution /= scale
    return solution[: table.shape[1]], solution[table.shape[1] :]


def _table(sizes: Sequence[int], increments: np.ndarray) -> dict[int, int]:
    return {size: round(float(time)) for size, time in zip(sizes, np.cumsum(increments), strict=True)}


def _rounded(cost: float) -> float:
    """Five digits: more than the measurement has."""
    return float(f"{cost:.5g}")


def _errors(model: CalibratedStepTime, rows: list[MeasuredStep]) -> HoldOutError:
    errors = [abs(model.duration_ns(row.shape) / row.duration_ns - 1) for row in rows]
    return HoldOutError(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)), max(errors))
