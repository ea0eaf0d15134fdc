"""A step-time model with one coefficient per sum: the form that a calibration fits."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

from kvtwin.engine.compiled.loop.step_time import LINEAR
from kvtwin.sim.step_costs import StepCosts
from kvtwin.sim.step_shape import StepShape

COEFFICIENTS = (
    "step_ns",
    "prefill_token_ns",
    "context_token_ns",
    "sequence_ns",
    "prefill_pair_ns",
)


class LinearStepTime:
    """A cost per step, prefill token, context token, sequence and prefill query-key pair, added up.

    Coefficients are nanoseconds, not negative; one left out is 0: no coefficients mean zero step time.
    """

    name = "linear"

    def __init__(self, coefficients: Mapping[str, Any]) -> None:
        """ValueError: an unknown name, or a coefficient that is not a number of at least 0."""
        for key, value in coefficients.items():
            if key not in COEFFICIENTS:
                raise ValueError(f"unknown coefficient {key!r}; known: {', '.join(COEFFICIENTS)}")
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{key} must be a number of nanoseconds, not {value!r}")
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{key} must be a finite number of at least 0, not {value!r}")
        values = [float(coefficients.get(key, 0.0)) for key in COEFFICIENTS]
        self._step, self._prefill, self._context, self._sequence, self._pair = values

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        if shape.num_sequences == 0:
            return 0
        return round(
            self._step
            + self._prefill * shape.prefill_tokens
            + self._context * shape.context_tokens
            + self._sequence * shape.num_sequences
            + self._pair * shape.prefill_attention_pairs
        )

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts:
        """The coefficients."""
        return StepCosts(LINEAR, array("d", (self._step, self._prefill, self._context, self._sequence, self._pair)))

    def describe(self) -> dict[str, float | int | str]:
        """The coefficients in nanoseconds."""
        values = (self._step, self._prefill, self._context, self._sequence, self._pair)
        return {"model": self.name, **dict(zip(COEFFICIENTS, values, strict=True))}
