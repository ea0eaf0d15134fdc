"""``kvtwin validate``: serve a workload for real, simulate the same, compare, and check."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvtwin.engine.config import VLLM_VERSION
from kvtwin.experiments.commands.size import capacity_line
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import check_mapping, read_yaml
from kvtwin.experiments.options.device import add_device_arguments, device_errors
from kvtwin.experiments.options.engine import add_engine_arguments
from kvtwin.experiments.options.load import add_load_arguments
from kvtwin.experiments.options.output import add_output_arguments
from kvtwin.experiments.options.parser import CommandParser, Number, Whole
from kvtwin.experiments.options.sizing import add_sizing_arguments
from kvtwin.experiments.options.step_time import step_time_title
from kvtwin.experiments.options.trace import add_format_arguments
from kvtwin.experiments.runs.facts import now
from kvtwin.experiments.runs.folder import check_free, folder_beside, write_run_folder
from kvtwin.experiments.runs.reader import Run
from kvtwin.experiments.sweeps.spec import command_words, read_options
from kvtwin.experiments.validation.checks import same_decisions, same_tokens
from kvtwin.experiments.validation.facts import validation_facts
from kvtwin.experiments.validation.predictor import Predictor, make_predictor
from kvtwin.experiments.validation.runs import measure, predict, step_times
from kvtwin.experiments.validation.settings import ELSEWHERE, Setting, resolve
from kvtwin.experiments.validation.text import text_lines
from kvtwin.gpu.errors import DeviceError

_SPEC_KEYS = ("trace", "options")

EPILOGUE = """\
WORKLOAD is a workload file, demo (the bundled workload), or a YAML file of `trace:` and `options:`, any of the options
above without their dashes; options on the command line go before the file's.

Check 1: a simulation that is fed with what the device delivered makes every decision of the real run, and the block
tables and slots that the device used are those of the engine. Check 2: every request was told what it is told alone,
with no cache. What is left between measured and predicted is the step-time model's error.

examples:
  kvtwin validate demo --limit 60 --length-scale 0.25 --max-model-len 1024 --num-gpu-blocks-override 130
  kvtwin validate experiments/configs/validate-smoke.yaml --out first-validation

Exit code: 0; 1 when check 1 or 2 fails; 2 for a mistake in the input, or when the device's memory does not do.
"""


def add_arguments(parser: CommandParser) -> None:
    """Add the options of ``validate``."""
    parser.add_argument("trace", metavar="WORKLOAD", help="workload file, demo, or a YAML file of trace and options")
    add_device_arguments(parser)
    add = parser.add_argument_group("validation").add_argument
    add(
        "--limit",
        dest="num_prompts",
        type=Whole(),
        metavar="N",
        help="only the first N requests; the same as --num-prompts",
    )
    add(
        "--length-scale",
        type=Number(0, 1, above=True),
        default=1.0,
        metavar="X",
        help="shorten prompts, outputs and what prompts share",
    )
    add("--temperature", type=Number(0, 100), default=0.0, metavar="T", help="of sampling; 0: greedy")
    add(
        "--step-time",
        metavar="FILE",
        help="what predicts: linear, zero, or a YAML file, as of `kvtwin calibrate` (else a quick calibration comes "
        "first)",
    )
    add("--debug", action="store_true", help="fill blocks that nobody may read with NaN")
    add_format_arguments(parser)
    add_sizing_arguments(parser)
    add_engine_arguments(parser)
    add_load_arguments(parser)
    add_output_arguments(parser)
    parser.hide(*ELSEWHERE)
    parser.set_defaults(model="tiny", allocator="paged", kv_events=False)


def parse_command_line(parser: CommandParser, words: list[str]) -> argparse.Namespace:
    """The options in ``words``, with those of a YAML file below them. UserError: a mistake in either."""
    args: argparse.Namespace = parser.parse_args(words)
    path = Path(args.trace)
    if path.suffix not in (".yaml", ".yml"):
        return args
    spec = check_mapping(str(path), read_yaml(path), _SPEC_KEYS)
    if not spec.get("trace"):
        raise UserError(f"{path}: trace: expected a workload file, or demo")
    below = parser.parse_args(
        [str(spec["trace"]), *command_words(read_options(path, "options", spec.get("options") or {}))]
    )
    trace = below.trace
    args = parser.parse_args(words, below)
    args.trace = trace
    return args


def run(args: argparse.Namespace) -> int:
    """Validate. Exit code 1 when a check fails."""
    if args.out:
        check_free(args.out)
    with _staging(args.out) as folder:
        facts = validate(args, folder)
        if args.json:
            print(json.dumps({"date": now()} | facts, indent=2, allow_nan=False))
        else:
            print("\n".join([*facts["heading"], "", *text_lines(facts)]))
        if args.out:
            write_run_folder(args.out, {}, folder)
    return 0 if all(check["passed"] for check in facts["checks"].values()) else 1


def validate(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Both runs, the comparison and the checks; what ``--out`` keeps is written into ``folder``.

    UserError: a setting that cannot be, or the device's memory is used up. ``--out`` keeps what was run then, and when
    the user interrupts.
    """
    setting = resolve(args)
    for warning in setting.workload.warnings:
        print(f"kvtwin: warning: {warning}", file=sys.stderr)
    with device_errors():
        executor = setting.model.executor(setting.config, temperature=args.temperature, seed=args.seed, records=True)
        predictor = make_predictor(setting, executor)
        measured = measure(setting, executor)
    write_run_folder(folder / "measured", measured.files)
    try:
        if measured.failure:
            raise measured.failure
        records = measured.transcripts.with_outputs(setting.records)
        write_run_folder(folder / "predicted", predict(setting, records, predictor))
        checks = {"check_1": same_decisions(setting, measured), "check_2": same_tokens(setting, executor, measured)}
    except DeviceError as error:
        raise UserError(_kept(args, folder, str(error))) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_kept(args, folder, "interrupted")) from None
    runs = Run(folder / "measured"), Run(folder / "predicted")
    times = step_times(measured, predictor)
    facts = {"heading": _heading(setting, predictor, runs[0])} | validation_facts(*runs, times)
    facts |= {"checks": checks, "verdict": _verdict(facts, checks)}
    if args.out:
        from kvtwin.experiments.pictures.figure import save_as
        from kvtwin.experiments.pictures.validation import validation

        (folder / "comparison.json").write_text(json.dumps(facts, indent=2, allow_nan=False) + "\n")
        save_as(validation(*runs, times), folder / "validate.png")
    return facts


@contextmanager
def _staging(out: Path | None) -> Iterator[Path]:
    """A temporary folder for both runs, where they can be moved to ``out`` from."""
    if out is None:
        with TemporaryDirectory() as name:
            yield Path(name)
        return
    with folder_beside(out, "-runs") as folder:
        yield folder


def _kept(args: argparse.Namespace, folder: Path, failure: str) -> str:
    """Keep the record of a run that ended early; what is to be said of it."""
    if not args.out:
        return f"{failure}; --out DIR keeps the record of what ran"
    write_run_folder(args.out, {}, folder)
    return f"{failure}; {args.out / 'measured'} has the record of what ran"


def _heading(setting: Setting, predictor: Predictor, measured: Run) -> list[str]:
    args, sizing, model = setting.args, setting.sizing, setting.model
    inputs = sizing.inputs
    shorter = f", lengths x {args.length_scale:g}" if args.length_scale != 1 else ""
    weights = f"weights of {args.weights}" if args.weights else f"random weights (seed {args.seed})"
    origin = ", measured just before"
    if args.step_time:
        origin = "" if args.step_time == predictor.step_time.name else f", {args.step_time}"
    return [
        f"kvtwin validate (models vLLM {VLLM_VERSION})",
        f"trace   {args.trace} ({setting.workload.format_name}): {len(setting.records):,} requests{shorter}",
        f"server  {inputs.shape.name}, {inputs.shape.dtype}, {weights}, on {model.device_name}, "
        f"{'async' if inputs.async_scheduling else 'sync'} scheduling",
        f"step time  {step_time_title(predictor.step_time)}{origin}",
        *(f"note    {note}" for note in inputs.notes),
        *(f"note    not served: {count:,}, {why}" for why, count in _not_served(measured.summary).items()),
        capacity_line(sizing.plan),
    ]


def _not_served(summary: dict[str, Any]) -> dict[str, int]:
    """Requests by the reason why nothing can be compared of them."""
    hanging = {"left when nothing could move any more": summary["unfinished"]} if summary["unfinished"] else {}
    return summary["rejected_by_reason"] | hanging


def _verdict(facts: dict[str, Any], checks: dict[str, Any]) -> str:
    """One line about it all."""
    failed = [name.replace("_", " ") for name, check in checks.items() if not check["passed"]]
    if failed:
        return f"FAILED: {' and '.join(failed)}"
    error = facts["step_time"]["median_error"]
    steps = "" if error is None else f"; steps are predicted within {error:.1%} (median)"
    return f"passed: the same decisions and the same tokens{steps}"
