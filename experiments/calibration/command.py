"""The calibration that options ask for: what is measured, what is fitted, and the file that is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.calibration.calibration import (
    FULL,
    extent,
    measured_steps,
    progress_bar,
    steps_of_run,
    where_and_when,
)
from kvtwin.experiments.calibration.fit import Calibration, HoldOutError, MeasuredStep, calibrate
from kvtwin.experiments.calibration.server import fit_to_server
from kvtwin.experiments.catalogue.models import load_model
from kvtwin.experiments.display.tables import Part, as_text, show, table
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.new import check_new, new_file
from kvtwin.experiments.options.calibrate import CalibrateOptions
from kvtwin.experiments.options.sizing import GPU_MEMORY_UTILIZATION
from kvtwin.experiments.records.reader import Run, written_by_this_version
from kvtwin.experiments.setup.device import device_errors, load_device_model

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel


def calibrate_as_asked(options: CalibrateOptions) -> int:
    """Measure, fit, print the errors on steps that were held out, and write the file."""
    if options.out:
        check_new(options.out)
    if options.server:
        return _fit_to_server(options, options.server)
    if options.run:
        if not options.run.exists():
            raise UserError(f"--from {options.run}: no such file or folder")
        if not options.run.is_dir() or (options.run / "requests.jsonl").is_file():
            raise UserError(f"--from {options.run}: needs --server, a YAML file of the server's trace and options")
        with written_by_this_version(options.run):
            steps, origin = steps_of_run(Run(options.run))
    else:
        steps, origin = _measure(options)
    try:
        with device_errors():
            calibration = calibrate(steps)
    except ValueError as error:
        raise UserError(f"too little was measured: {error}") from None
    heading = _heading(calibration)
    text = "".join(f"# {line}\n" for line in as_text(*heading).splitlines()) + yaml.safe_dump(
        {**calibration.coefficients, "measured": {**origin, **extent(steps, calibration)}}, sort_keys=False
    )
    if options.out:
        try:
            _write(options.out, text)
        except UserError:
            print(text, end="")  # measuring took minutes
            raise
        show(*heading, f"{options.out} written, for --step-time")
    else:
        print(text, end="")
    return 0


def _fit_to_server(options: CalibrateOptions, server: Path) -> int:
    """Fit scale and time per step to requests that a server served, and write them."""
    if options.run is None:
        raise UserError("--server: needs --from, the record of what that server served")
    fit = fit_to_server(options.run, server)
    text = "".join(f"# {line}\n" for line in fit.lines()) + yaml.safe_dump(fit.data(), sort_keys=False)
    if options.out:
        _write(options.out, text)
        show(*fit.lines(), f"{options.out} written, for --step-time")
    else:
        print(text, end="")
    return 0


_CPU_BLOCKS = 2049


class _Limits(NamedTuple):
    """What a server allows, unless options say otherwise."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


_LIMITS = {"cpu": _Limits(4096, 32, 2048), "cuda": _Limits(32768, 256, 8192)}


def _measure(options: CalibrateOptions) -> tuple[list[MeasuredStep], dict[str, Any]]:
    with device_errors():
        model = load_device_model(options, options.model, options.seed)
        config = _config(options, model)
        executor = model.executor(config, records=True)
        with progress_bar(options.limit_s) as progress:
            steps = measured_steps(executor, config, model.decoder.config.vocab_size, FULL, options.limit_s, progress)
    return steps, where_and_when(model, config)


def _config(options: CalibrateOptions, model: DeviceModel) -> EngineConfig:
    """The server whose steps are measured. UserError: there is none like this."""
    longest = model.decoder.config.max_position_tokens
    limits = _LIMITS[options.device]
    limits = _Limits(
        options.max_model_len or min(limits.max_model_len, longest),
        options.max_num_seqs or limits.max_num_seqs,
        options.max_num_batched_tokens or limits.max_num_batched_tokens,
    )
    if limits.max_model_len > longest:
        raise UserError(f"--max-model-len {limits.max_model_len} is more than the model's {longest} tokens")
    num_blocks = options.num_gpu_blocks_override or _num_blocks(options, model, limits)
    try:
        return EngineConfig(num_blocks=num_blocks, block_size=options.block_size, **limits._asdict())
    except ValueError as error:
        raise UserError(str(error)) from None


def _num_blocks(options: CalibrateOptions, model: DeviceModel, limits: _Limits) -> int:
    """As many as are ever used, or fit."""
    if model.device.type == "cpu":
        return _CPU_BLOCKS
    from kvtwin.gpu.memory_profile import measured_budget

    used = 1 + limits.max_num_seqs * -(-limits.max_model_len // options.block_size)
    budget = measured_budget(
        model.decoder,
        load_model(options.model),
        utilization=GPU_MEMORY_UTILIZATION,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        block_size=options.block_size,
    )
    return min(used, budget.available_bytes // model.block_bytes(options.block_size))


def _heading(calibration: Calibration) -> list[Part]:
    """How well held-out steps are predicted, in a few lines."""

    def row(kind: str, error: HoldOutError) -> tuple[str, ...]:
        shares = (f"{share:.1%}" for share in (error.median, error.p90, error.max))
        return kind, f"{error.num_shapes}", *shares

    return [
        "errors of a fit to 70 % of the steps on the others, relative to the measurement",
        table(
            ("", "held out", "median", "p90", "max"),
            [
                row("steps that only decode", calibration.decode_error),
                row("steps with prompt tokens", calibration.prefill_error),
            ],
        ),
    ]


def _write(path: Path, text: str) -> None:
    with new_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
