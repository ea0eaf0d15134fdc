"""A step-time model that was fitted to whole requests of a server: another model's times, longer or shorter."""

from __future__ import annotations

from collections.abc import Mapping

from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.step_time import StepTimeModel


class AdjustedStepTime:
    """Another model's durations, times ``decode_scale`` where all sequences decode, else times ``prefill_scale``."""

    def __init__(
        self,
        base: StepTimeModel,
        decode_scale: float,
        prefill_scale: float,
        measured: Mapping[str, float | int | str] | None = None,
    ) -> None:
        """``measured`` says what it was fitted to. ValueError: a scale that is not above 0, or more than 100."""
        for name, scale in (("decode_scale", decode_scale), ("prefill_scale", prefill_scale)):
            if not 0 < scale <= 100:
                raise ValueError(f"{name}: expected a number above 0 and up to 100, got {scale!r}")
        self._base, self._decode_scale, self._prefill_scale = base, decode_scale, prefill_scale
        self.measured = dict(measured or {})

    @property
    def name(self) -> str:
        """The other model, and that it is adjusted."""
        return f"{self._base.name}, adjusted"

    def duration_ns(self, shape: StepShape) -> int:
        """Duration of one step in nanoseconds; 0 without sequences."""
        scale = self._prefill_scale if shape.prefill_tokens else self._decode_scale
        return round(scale * self._base.duration_ns(shape))

    def describe(self) -> dict[str, float | int | str]:
        """The other model's parameters, both scales, and what was measured."""
        measured = {f"measured_{key}": value for key, value in self.measured.items()}
        scales = {"decode_scale": self._decode_scale, "prefill_scale": self._prefill_scale}
        return {**self._base.describe(), **scales, **measured}
