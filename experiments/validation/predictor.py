"""What predicts in a validation: a step-time model, of a file or measured just before, and a link to the host."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtwin.engine.executor import HostCopy, Step
from kvtwin.experiments.calibration.calibration import quick_calibration, where_and_when
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.setup.step_time import step_time_model
from kvtwin.experiments.validation.settings import Setting
from kvtwin.sim.decided_steps import DecidedStep
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.time_units import SECOND_NS

if TYPE_CHECKING:
    from kvtwin.gpu.executor import DeviceExecutor

_MOST_COPIED_BLOCKS = 256
"""Blocks that are copied at once to measure how long copies take."""


@dataclass(frozen=True)
class Predictor:
    """How long steps take, and the copies to and from the host that come before them."""

    step_time: StepTimeModel
    link: HostLink | None
    """None: nothing is copied."""

    def duration_ns(self, step: DecidedStep) -> int:
        """How long a step takes, copies first."""
        num_copies = len(step.saves) + len(step.loads)
        copying_ns = self.link.duration_ns(num_copies) if self.link and num_copies else 0
        return copying_ns + self.step_time.duration_ns(step.shape)


def make_predictor(setting: Setting, executor: DeviceExecutor) -> Predictor:
    """The model of ``--step-time``, else one that is measured now; what ``executor``'s cache holds is lost.

    UserError: a bad file, or a pool too small to measure anything.
    """
    return Predictor(_step_time(setting, executor), _measured_link(setting, executor))


def _step_time(setting: Setting, executor: DeviceExecutor) -> StepTimeModel:
    name = setting.options.step_time
    if name in ("roofline", "aic"):
        raise UserError(f"--step-time {name}: {name} does not know the speed of --device; give a file, linear or zero")
    if setting.options.step_time is not None:
        return step_time_model(setting.options, setting.sizing.inputs)
    print(
        "kvtwin: measuring step times, for 10 s at most (--step-time FILE takes those of `kvtwin calibrate`)",
        file=sys.stderr,
    )
    try:
        calibration = quick_calibration(executor, setting.config, setting.model.decoder.config.vocab_size)
    except ValueError as error:
        raise UserError(f"the quick calibration failed: {error}; give a step-time model with --step-time") from None
    return calibration.step_time(where_and_when(setting.model, setting.config))


def _measured_link(setting: Setting, executor: DeviceExecutor) -> HostLink | None:
    """The link between device and host, if anything is copied; its rate is measured, there and back."""
    config = setting.config
    num_blocks = min(config.num_swap_blocks + config.num_offload_blocks, config.num_blocks - 1, _MOST_COPIED_BLOCKS)
    if num_blocks == 0:
        return None
    copies = [HostCopy(block + 1, block) for block in range(num_blocks)]
    steps = [Step(index=0, saves=copies), Step(index=0, loads=copies)] * 3
    durations_ns = [executor.collect(executor.submit(step)).duration_ns for step in steps]
    block_bytes = max(setting.sizing.plan.block_bytes)
    return HostLink(block_bytes, num_blocks * block_bytes * SECOND_NS / max(1, int(np.median(durations_ns))))
