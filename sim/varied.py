"""A step-time model that is wrong on purpose: to see how much of a result hangs on step times."""

from __future__ import annotations

from array import array
from copy import copy

from kvtwin.engine.compiled.loop.step_time import DRAW_MODULUS, varied_factor
from kvtwin.sim.step_costs import HasStepCosts, StepCosts
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
        self._base = base
        self._numbers = array("d", [bias, noise, 1 + (seed + 1) * 1_000_003 % (DRAW_MODULUS - 1)])

    @property
    def name(self) -> str:
        """The other model's."""
        return self._base.name

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        return round(varied_factor(self._numbers, 0) * self._base.duration_ns(shape))

    def for_one_server(self) -> VariedStepTime:
        """One that draws for itself, and begins as this one is now."""
        own = copy(self)
        own._numbers = array("d", self._numbers)
        return own

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts | None:
        """The other model's numbers, and behind them what varies them."""
        costs = self._base.step_costs(most_sequences, most_tokens) if isinstance(self._base, HasStepCosts) else None
        if costs is None:
            return None
        return costs._replace(numbers=costs.numbers + self._numbers, varied=len(costs.numbers))

    def describe(self) -> dict[str, float | int | str]:
        """The other model's parameters, and what was varied."""
        return {**self._base.describe(), "bias": self._numbers[0], "noise": self._numbers[1]}
