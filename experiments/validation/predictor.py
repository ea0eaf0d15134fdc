"""What predicts in a validation: a step-time model, of a file or measured just before, and a link to the host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtwin.engine.executor import HostCopy, Step
from kvtwin.experiments.calibration.calibration import quick_calibration, where_and_when
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.setup.step_time import step_time_model
from kvtwin.experiments.validation.settings import ServerSetting, Setting
from kvtwin.sim.decided_steps import DecidedStep
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.time_units import SECOND_NS

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel
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


def make_predictors(setting: Setting, executors: Sequence[DeviceExecutor]) -> list[Predictor]:
    """Per server, the model of ``--step-time``, else one that is measured now; what the caches hold is lost.

    UserError: a bad file, or a pool too small to measure anything.
    """
    made: dict[ValidateOptions, Predictor] = {}
    for server, executor in zip(setting.servers, executors, strict=True):
        if server.options not in made:
            made[server.options] = Predictor(
                _step_time(setting.model, server, executor), _measured_link(server, executor)
            )
    return [made[server.options] for server in setting.servers]


def _step_time(model: DeviceModel, server: ServerSetting, executor: DeviceExecutor) -> StepTimeModel:
    name = server.options.step_time
    if name in ("roofline", "aic"):
        raise UserError(f"--step-time {name}: {name} does not know the speed of --device; give a file, linear or zero")
    if name is not None:
        return step_time_model(server.options, server.sizing.inputs)
    print(
        "kvtwin: measuring step times, for 10 s at most (--step-time FILE takes those of `kvtwin calibrate`)",
        file=sys.stderr,
    )
    try:
        calibration = quick_calibration(executor, server.config, model.decoder.config.vocab_size)
    except ValueError as error:
        raise UserError(f"the quick calibration failed: {error}; give a step-time model with --step-time") from None
    return calibration.step_time(where_and_when(model, server.config))


def _measured_link(server: ServerSetting, executor: DeviceExecutor) -> HostLink | None:
    """The link between device and host, if anything is copied; its rate is measured, there and back."""
    config = server.config
    num_blocks = min(config.num_swap_blocks + config.num_offload_blocks, config.num_blocks - 1, _MOST_COPIED_BLOCKS)
    if num_blocks == 0:
        return None
    copies = [HostCopy(block + 1, block) for block in range(num_blocks)]
    steps = [Step(index=0, saves=copies), Step(index=0, loads=copies)] * 3
    durations_ns = [executor.collect(executor.submit(step)).duration_ns for step in steps]
    block_bytes = max(server.sizing.plan.block_bytes)
    return HostLink(block_bytes, num_blocks * block_bytes * SECOND_NS / max(1, int(np.median(durations_ns))))
