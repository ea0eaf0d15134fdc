"""``kvtwin calibrate``: measure how long steps take on a device, and write a step-time model that predicts them."""

from __future__ import annotations

import argparse
import os
import tempfile
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
from kvtwin.experiments.catalogue.catalogue import load_model
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.whole import whole_file
from kvtwin.experiments.options.device import add_device_arguments, device_errors, load_device_model
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.experiments.options.sizing import GPU_MEMORY_UTILIZATION
from kvtwin.experiments.runs.reader import Run, written_by_this_version

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel

EPILOGUE = """\
examples:
  kvtwin calibrate --out laptop.yaml
  kvtwin calibrate --device cuda --model Llama-3.1-8B --out my-gpu.yaml
  kvtwin replay TRACE --model tiny --num-gpu-blocks-override 2000 --step-time laptop.yaml
"""

_CPU_BLOCKS = 2049


class _Limits(NamedTuple):
    """What a server allows, unless options say otherwise."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


_LIMITS = {"cpu": _Limits(4096, 32, 2048), "cuda": _Limits(32768, 256, 8192)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, and where it is written."""
    parser.add_argument(
        "--model", default="tiny", metavar="NAME", help="name from `kvtwin models`, or a path to a config.json"
    )
    add_device_arguments(parser)
    add = parser.add_argument_group("steps to measure, up to").add_argument
    add("--max-model-len", type=Whole(2), metavar="TOKENS", help="longest context (else 4096 on a CPU, 32768 on a GPU)")
    add("--max-num-seqs", type=Whole(), metavar="SEQS", help="requests per step (else 32, 256)")
    add("--max-num-batched-tokens", type=Whole(), metavar="TOKENS", help="tokens per step (else 2048, 8192)")
    add("--block-size", type=Whole(), default=16, metavar="TOKENS", help="tokens per block")
    add(
        "--num-gpu-blocks-override",
        type=Whole(2),
        metavar="BLOCKS",
        help="blocks of the cache (else 2049 on a CPU; on a GPU as many as fit)",
    )
    add("--limit-s", type=Number(0, above=True), default=180.0, metavar="SECONDS", help="measure no longer than this")
    add("--seed", type=Whole(0), default=0, help="of random weights")
    add = parser.add_argument
    add("--from", dest="run", type=Path, metavar="RUN", help="measure nothing: fit the steps of this measured run")
    add("--out", type=Path, metavar="FILE", help="a new YAML file (else it is printed)")


def run(args: argparse.Namespace) -> int:
    """Measure, fit, print the errors on steps that were held out, and write the file."""
    if args.out:
        _check_free(args.out)
    if args.run:
        with written_by_this_version(args.run):
            steps, origin = steps_of_run(Run(args.run))
    else:
        steps, origin = _measure(args)
    try:
        with device_errors():
            calibration = calibrate(steps)
    except ValueError as error:
        raise UserError(f"too little was measured: {error}") from None
    heading = _heading(calibration)
    text = "".join(f"# {line}\n" for line in heading) + yaml.safe_dump(
        {**calibration.coefficients, "measured": {**origin, **extent(steps, calibration)}}, sort_keys=False
    )
    if args.out:
        _write(args.out, text)
        print("\n".join([*heading, f"{args.out} written, for --step-time"]))
    else:
        print(text, end="")
    return 0


def _measure(args: argparse.Namespace) -> tuple[list[MeasuredStep], dict[str, Any]]:
    with device_errors():
        import scipy.optimize  # noqa: F401 - the fit needs it: who lacks it is told before minutes are spent

        model = load_device_model(args)
        config = _config(args, model)
        executor = model.executor(config, records=True)
        with progress_bar(args.limit_s) as progress:
            steps = measured_steps(executor, config, model.decoder.config.vocab_size, FULL, args.limit_s, progress)
    return steps, where_and_when(model, config)


def _config(args: argparse.Namespace, model: DeviceModel) -> EngineConfig:
    """The server whose steps are measured. UserError: there is none like this."""
    longest = model.decoder.config.max_position_tokens
    limits = _LIMITS[args.device]
    limits = _Limits(
        args.max_model_len or min(limits.max_model_len, longest),
        args.max_num_seqs or limits.max_num_seqs,
        args.max_num_batched_tokens or limits.max_num_batched_tokens,
    )
    if limits.max_model_len > longest:
        raise UserError(f"--max-model-len {limits.max_model_len} is more than the model's {longest} tokens")
    num_blocks = args.num_gpu_blocks_override or _num_blocks(args, model, limits)
    try:
        return EngineConfig(num_blocks=num_blocks, block_size=args.block_size, **limits._asdict())
    except ValueError as error:
        raise UserError(str(error)) from None


def _num_blocks(args: argparse.Namespace, model: DeviceModel, limits: _Limits) -> int:
    """As many as are ever used, or fit."""
    if model.device.type == "cpu":
        return _CPU_BLOCKS
    from kvtwin.gpu.memory_profile import measured_budget

    used = 1 + limits.max_num_seqs * -(-limits.max_model_len // args.block_size)
    budget = measured_budget(
        model.decoder,
        load_model(args.model),
        utilization=GPU_MEMORY_UTILIZATION,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        block_size=args.block_size,
    )
    return min(used, budget.available_bytes // model.block_bytes(args.block_size))


def _heading(calibration: Calibration) -> list[str]:
    """How well held-out steps are predicted, in a few lines."""

    def row(kind: str, error: HoldOutError) -> str:
        shares = "".join(f"{100 * share:>9.1f}%" for share in (error.median, error.p90, error.max))
        return f"{kind:<24}{error.num_shapes:>9}{shares}"

    return [
        "errors of a fit to 70 % of the steps on the others, relative to the measurement",
        f"{'':<24}{'held out':>9}{'median':>10}{'p90':>10}{'max':>10}",
        row("steps that only decode", calibration.decode_error),
        row("steps with prompt tokens", calibration.prefill_error),
    ]


def _check_free(path: Path) -> None:
    """UserError if something is there, or nothing can be: before anything is measured."""
    if os.path.lexists(path):
        raise UserError(f"--out {path}: already exists; name a new file")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError:
        raise UserError(f"--out {path}: {path.parent} is not a folder that can be written to") from None


def _write(path: Path, text: str) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror or error}") from None
