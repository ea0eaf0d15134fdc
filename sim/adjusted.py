"""A step-time model that was fitted to whole requests of a server: another model's times, longer or shorter."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from kvtwin.engine.compiled.loop.step_time import ADJUSTMENT
from kvtwin.sim.server_step_time import ServerStepTime
from kvtwin.sim.step_costs import StepCosts
from kvtwin.sim.step_shape import StepShape


class AdjustedStepTime:
    """Another model's durations, times ``decode_scale`` where all sequences decode, else times ``prefill_scale``, and
    ``step_ns`` more for every step.
    """

    def __init__(
        self,
        base: ServerStepTime,
        decode_scale: float,
        prefill_scale: float,
        step_ns: float = 0.0,
        measured: Mapping[str, float | int | str] | None = None,
    ) -> None:
        """``measured`` says what it was fitted to. ValueError: a scale that is not above 0, or more than 100; a time
        below 0, or of more than a second.
        """
        for name, scale in (("decode_scale", decode_scale), ("prefill_scale", prefill_scale)):
            if not 0 < scale <= 100:
                raise ValueError(f"{name}: expected a number above 0 and up to 100, got {scale!r}")
        if not 0 <= step_ns <= 1e9:
            raise ValueError(f"step_ns: expected a number from 0 to 1e9, got {step_ns!r}")
        self._base, self._decode_scale, self._prefill_scale = base, decode_scale, prefill_scale
        self._step_ns = step_ns
        self.measured = dict(measured or {})

    @property
    def name(self) -> str:
        """The other model, and that it is adjusted."""
        return f"{self._base.name}, adjusted"

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        if not shape.num_sequences:
            return 0
        scale = self._prefill_scale if shape.prefill_tokens else self._decode_scale
        return round(scale * self._base.duration_ns(shape) + self._step_ns)

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts | None:
        """The other model's numbers, adjusted in what they say of the server."""
        costs = self._base.step_costs(most_sequences, most_tokens)
        if costs is None:
            return None
        numbers = array("d", costs.numbers)
        for place, value in enumerate((self._decode_scale, self._prefill_scale, self._step_ns)):
            numbers[costs.server + ADJUSTMENT + place] = value
        return costs._replace(numbers=numbers)

    def describe(self) -> dict[str, float | int | str]:
        """The other model's parameters, the adjustment, and what was measured."""
        measured = {f"measured_{key}": value for key, value in self.measured.items()}
        adjustment = {
            "decode_scale": self._decode_scale,
            "prefill_scale": self._prefill_scale,
            "step_ns": self._step_ns,
        }
        return {**self._base.describe(), **adjustment, **measured}
