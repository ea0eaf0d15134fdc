"""A step-time model measured on the device itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.calibration.fit import Calibration, HoldOutError, MeasuredStep, calibrate
from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.files.version import kvtwin_version
from kvtwin.experiments.records.executed_steps import read_executed_steps
from kvtwin.experiments.records.reader import Run
from kvtwin.sim.step_shape import step_shape

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel
    from kvtwin.gpu.executor import DeviceExecutor

Progress = Callable[[int, int], None]
"""Is told how many of how many measurements are done."""


class Effort(NamedTuple):
    """How much is measured."""

    num_levels: int
    """Sizes of each kind."""
    num_visits: int
    num_repeats: int
    """Runs of a step at each visit that count."""


FULL = Effort(num_levels=5, num_visits=4, num_repeats=3)
QUICK = Effort(num_levels=3, num_visits=3, num_repeats=2)


def quick_calibration(
    executor: DeviceExecutor, config: EngineConfig, vocab_size: int, *, limit_s: float = 10.0
) -> Calibration:
    """A coarse one with an executor at hand, in about ``limit_s`` seconds.

    ValueError: the pool or the batches are so small that there is too little to measure. For the executor,
    :func:`kvtwin.gpu.step_measurements.measure_steps` says what it must be, and what becomes of its cache.
    """
    with progress_bar(limit_s) as progress:
        steps = measured_steps(executor, config, vocab_size, QUICK, limit_s, progress)
    return calibrate(steps)


def measured_steps(
    executor: DeviceExecutor,
    config: EngineConfig,
    vocab_size: int,
    effort: Effort,
    limit_s: float,
    progress: Progress | None = None,
) -> list[MeasuredStep]:
    """Steps of all kinds that ``config`` allows, each as often as it was measured."""
    from kvtwin.gpu.step_grid import step_grid
    from kvtwin.gpu.step_measurements import measure_steps

    plans = step_grid(config, effort.num_levels)
    num_done = 0

    def advance() -> None:
        nonlocal num_done
        num_done += 1
        if progress:
            progress(num_done, len(plans) * effort.num_visits)

    measurements = measure_steps(
        executor,
        config,
        plans,
        vocab_size=vocab_size,
        num_visits=effort.num_visits,
        num_repeats=effort.num_repeats,
        limit_s=limit_s,
        on_visit=advance,
    )
    return [
        MeasuredStep(step_shape(measurement.step), measurement.num_padded_sequences, duration_ns)
        for measurement in measurements
        for duration_ns in measurement.durations_ns
    ]


@contextmanager
def progress_bar(limit_s: float) -> Iterator[Progress]:
    """Show how far a measurement of at most ``limit_s`` seconds is, and warn if it ends before all is done."""
    with progress("measuring steps", "visits") as bar:

        def show(num_done: int, num_all: int) -> None:
            bar.total = num_all
            bar.update(num_done - bar.n)

        yield show
    if bar.n and bar.n < bar.total:
        print(
            f"kvtwin: warning: step times: {bar.n:,} of {bar.total:,} measurements fitted into {limit_s:g} s; how long "
            "the largest steps take may be a guess",
            file=sys.stderr,
        )


def where_and_when(model: DeviceModel, config: EngineConfig) -> dict[str, float | int | str]:
    """What a file of measured step times records about its origin."""
    import torch

    is_cpu = model.device.type == "cpu"
    if not is_cpu:
        import triton
    return {
        "device": model.device_name,
        "clock": "CPU time of the thread" if is_cpu else "CUDA events",
        "model": model.decoder.config.name,
        "dtype": str(model.dtype).removeprefix("torch."),
        "block_size": config.block_size,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "kvtwin": kvtwin_version(),
        "torch": str(torch.__version__),
        **({} if is_cpu else {"triton": triton.__version__}),
    }


def steps_of_run(run: Run) -> tuple[list[MeasuredStep], dict[str, float | int | str]]:
    """The steps of a measured run, and what a file records about their origin. UserError: ``run`` was not measured.

    Steps that copied blocks are left out: a step-time model does not predict copies.
    """
    decided, executed = read_executed_steps(run)
    steps = [
        MeasuredStep(step.shape, done.num_padded_sequences, done.duration_ns)
        for step, done in zip(decided, executed, strict=False)
        if not (step.copies or step.saves or step.loads)
    ]
    configuration = run.configuration
    return steps, {
        "device": str(configuration["gpu"]),
        "model": str(configuration["model"]),
        "block_size": configuration["engine"]["block_size"],
        "run": "/".join(run.path.parts[-2:]),
        "date": str(run.machine.get("date", "")),
        "kvtwin": str(configuration["kvtwin_version"]),
    }


def extent(steps: Sequence[MeasuredStep], calibration: Calibration) -> dict[str, float | int | str]:
    """What a file records about its steps: how large they were, and how well held-out ones were predicted."""
    shapes = [step.shape for step in steps]
    return {
        "steps": len(steps),
        "shapes": calibration.num_shapes,
        "most_sequences": max(shape.num_sequences for shape in shapes),
        "most_tokens": max(shape.total_tokens for shape in shapes),
        "most_context_tokens": max(shape.context_tokens for shape in shapes),
        **_error("decode", calibration.decode_error),
        **_error("prefill", calibration.prefill_error),
    }


def _error(kind: str, error: HoldOutError) -> dict[str, Any]:
    return {
        f"{kind}_shapes_held_out": error.num_shapes,
        f"{kind}_median_error": round(error.median, 4),
        f"{kind}_p90_error": round(error.p90, 4),
        f"{kind}_max_error": round(error.max, 4),
    }
