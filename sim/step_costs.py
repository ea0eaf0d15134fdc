"""What the compiled loop knows of a step-time model: numbers, since it cannot ask Python how long a step takes."""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol, runtime_checkable


class StepCosts(NamedTuple):
    """A step-time model as numbers (:mod:`kvtwin.engine.compiled.loop.step_time`)."""

    form: int
    """LINEAR, ROOFLINE, CALIBRATED or TABULATED."""
    numbers: array[float]
    num_windows: int = 0
    server: int = 0
    """Where in ``numbers`` those of the server begin: host and interconnect; 0 without."""
    varied: int = 0
    """Where those of ``VariedStepTime`` begin; 0 without."""


@runtime_checkable
class HasStepCosts(Protocol):
    """A step-time model that can say what it does in numbers."""

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts | None:
        """For steps of at most so many sequences and tokens; None where a part of it cannot say."""
