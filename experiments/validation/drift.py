"""Whether the machine itself changed during a validation: one step, measured again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtwin.experiments.calibration.calibration import QUICK
from kvtwin.experiments.validation.settings import Setting
from kvtwin.workloads.time_units import MILLISECOND_NS

if TYPE_CHECKING:
    from kvtwin.gpu.executor import DeviceExecutor

_REPEATS = 9
_LIMIT_S = 5.0
NOTABLE = 0.05
"""A change of the reference step from which on it is said in words."""


class ReferenceStep:
    """A step of middle size out of the grid of a calibration, always the same one.

    Each measurement is lost to the executor's cache, so none may be made while requests run. Of replicas it is one of
    the first.
    """

    def __init__(self, setting: Setting, executor: DeviceExecutor) -> None:
        from kvtwin.gpu.step_grid import step_grid

        self._setting, self._executor, self._config = setting, executor, setting.servers[0].config
        steps = step_grid(self._config, QUICK.num_levels)
        steps.sort(key=lambda step: (sum(one.num_tokens for one in step), sum(one.context_tokens for one in step)))
        self._step = steps[len(steps) // 2] if steps else None
        self._durations_ns: dict[str, float] = {}

    def measure(self, when: str) -> None:
        """Take note of how long the step takes at this moment; ``when`` says which moment that is."""
        from kvtwin.gpu.step_measurements import measure_steps

        if self._step is None:
            return
        vocab_size = self._setting.model.decoder.config.vocab_size
        for measurement in measure_steps(
            self._executor,
            self._config,
            [self._step],
            vocab_size=vocab_size,
            num_visits=1,
            num_repeats=_REPEATS,
            limit_s=_LIMIT_S,
        ):
            self._durations_ns[when] = float(np.median(measurement.durations_ns))

    def facts(self) -> dict[str, Any]:
        """The times in ms by when they were measured, and how much longer the last is than the first."""
        times = list(self._durations_ns.values())
        largest = max((time / times[0] - 1 for time in times[1:]), key=abs, default=None)
        return {
            "reference_ms": {when: time / MILLISECOND_NS for when, time in self._durations_ns.items()},
            "drift": largest,
        }


def drift_line(facts: dict[str, Any]) -> str:
    """What the reference step says of the machine."""
    if facts["drift"] is None:
        return "no reference step was measured twice"
    times = ", ".join(f"{time:.2f} ms {when}" for when, time in facts["reference_ms"].items())
    changed = abs(facts["drift"]) >= NOTABLE
    words = ": the machine itself changed, so that no model can be blamed for as much" if changed else ""
    return f"reference step: {times} ({facts['drift']:+.1%}){words}"
