"""How long a step takes: the one question that the simulator asks a step-time model."""

from __future__ import annotations

from typing import Protocol

from kvtwin.sim.step_shape import StepShape


class StepTimeModel(Protocol):
    """Predicts the duration of a step from its shape.

    A prediction is a whole number of nanoseconds, rounded once; it never falls when a step grows, and a step
    without sequences takes none.
    """

    @property
    def name(self) -> str:
        """The name under which a user chooses the model."""

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds."""

    def describe(self) -> dict[str, float | int | str]:
        """The model's parameters, for the record of a run: numbers with units in their names."""
