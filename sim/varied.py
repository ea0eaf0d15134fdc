"""A step-time model that is wrong on purpose: to see how much of a result hangs on step times."""

from __future__ import annotations

from random import Random

from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.step_time import StepTimeModel


class VariedStepTime:
    """Another model's durations, all of them times ``bias``, and each times a factor of its own.

    The factors are drawn evenly from ``1 - noise`` to ``1 + noise``, in the order of the steps: the same ``seed`` gives
    the same run again.
    """

    def __init__(self, base: StepTimeModel, bias: float = 1.0, noise: float = 0.0, seed: int = 0) -> None:
        """ValueError: a bias that is not above 0, or a noise that is not from 0 to below 1."""
        if not bias > 0 or not 0 <= noise < 1:
            raise ValueError(f"expected a bias above 0 and a noise from 0 to 1, got {bias!r} and {noise!r}")
        self._base, self._bias, self._noise = base, bias, noise
        self._draw = Random(seed)

    @property
    def name(self) -> str:
        """The other model's."""
        return self._base.name

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        factor = self._bias * (1 + self._noise * self._draw.uniform(-1, 1))
        return round(factor * self._base.duration_ns(shape))

    def describe(self) -> dict[str, float | int | str]:
        """The other model's parameters, and what was varied."""
        return {**self._base.describe(), "bias": self._bias, "noise": self._noise}
