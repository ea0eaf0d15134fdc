"""Both runs of a validation, their comparison and the checks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.display.tables import as_text
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.ending import Ended, ended_by
from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.records.folder import write_run_folder
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs import validation_folder
from kvtwin.experiments.runs.paired_latencies import Pairs
from kvtwin.experiments.runs.replicas import replica_line
from kvtwin.experiments.setup.device import device_errors
from kvtwin.experiments.setup.replicas import has_replicas
from kvtwin.experiments.setup.step_time import step_time_title
from kvtwin.experiments.setup.trace import warn_of
from kvtwin.experiments.sizes.text import capacity_line
from kvtwin.experiments.validation.checks import same_decisions, same_tokens
from kvtwin.experiments.validation.drift import ReferenceStep
from kvtwin.experiments.validation.facts import spread_facts, validation_facts
from kvtwin.experiments.validation.predictor import Predictor, make_predictors
from kvtwin.experiments.validation.runs import measure, predict, predicted_spread, step_times
from kvtwin.experiments.validation.settings import Setting, resolve
from kvtwin.experiments.validation.text import text_parts
from kvtwin.gpu.errors import DeviceError


@dataclass(frozen=True)
class Validation:
    """What a validation found."""

    facts: dict[str, Any]
    runs: tuple[Run, Run]
    """Measured, and predicted."""
    times: Pairs
    """Of the measured steps, and as predicted."""

    def files(self) -> dict[str, bytes]:
        """What ``--out`` keeps beside both runs."""
        from kvtwin.experiments.pictures.figure import picture
        from kvtwin.experiments.pictures.of_run import heading_of
        from kvtwin.experiments.pictures.validation import VALIDATION, validation

        drawn = heading_of(self.runs[0]).on(validation(*self.runs, self.times), VALIDATION)
        return {
            validation_folder.FACTS: (json.dumps(self.facts, indent=2, allow_nan=False) + "\n").encode(),
            validation_folder.TEXT: (as_text(*self.facts["heading"], "", *text_parts(self.facts)) + "\n").encode(),
            validation_folder.STEP_TIMES: validation_folder.step_times_bytes(self.times),
            "validate.png": picture(drawn, "png"),
        }


def validate(options: ValidateOptions, folder: Path) -> Validation:
    """Both runs, the comparison and the checks; the runs are written into ``folder``.

    UserError: a setting that cannot be, or the device's memory is used up. ``--out`` keeps what was run then, and when
    the user interrupts.
    """
    setting = resolve(options)
    warn_of(setting.workload)
    with device_errors():
        executors = [
            setting.model.executor(server.config, temperature=options.temperature, seed=options.seed, records=True)
            for server in setting.servers
        ]
        reference = ReferenceStep(setting, executors[0])
        reference.measure("before")
        predictors = make_predictors(setting, executors)
        if options.step_time is None:
            reference.measure("after the calibration")
        measured = measure(setting, executors)
    write_run_folder(folder / "measured", measured.files)
    try:
        if measured.failure:
            raise measured.failure
        write_run_folder(folder / "predicted", predict(setting, measured.records, predictors))
        spread = predicted_spread(setting, measured.records, predictors, Run(folder / "predicted").summary)
        checks = {"check_1": same_decisions(setting, measured), "check_2": same_tokens(setting, executors, measured)}
        reference.measure("after the run")
    except DeviceError as error:
        raise UserError(_kept(options, folder, str(error))) from None
    except KeyboardInterrupt as interrupt:
        raise Ended(ended_by(interrupt), _kept(options, folder, "interrupted")) from None
    runs = Run(folder / "measured"), Run(folder / "predicted")
    times = step_times(measured, predictors)
    facts = {"heading": _heading(setting, predictors[0], runs[0])} | validation_facts(*runs, times)
    facts["spread"] = spread_facts(runs[0].summary, spread)
    facts |= {"machine": reference.facts(), "checks": checks, "verdict": _verdict(facts, checks)}
    return Validation(facts, runs, times)


def _kept(options: ValidateOptions, folder: Path, failure: str) -> str:
    """Keep the record of a run that ended early; what is to be said of it."""
    if not options.out:
        return f"{failure}; --out DIR keeps the record of what ran"
    write_run_folder(options.out, {}, folder)
    return f"{failure}; {options.out / 'measured'} has the record of what ran"


def _heading(setting: Setting, predictor: Predictor, measured: Run) -> list[str]:
    options, sizing, model = setting.options, setting.servers[0].sizing, setting.model
    configs = [server.config for server in setting.servers]
    inputs = sizing.inputs
    shorter = f", lengths x {options.length_scale:g}" if options.length_scale != 1 else ""
    weights = f"weights of {options.weights}" if options.weights else f"random weights (seed {options.seed})"
    origin = ", measured just before"
    if options.step_time:
        origin = "" if options.step_time == predictor.step_time.name else f", {options.step_time}"
    return [
        f"kvtwin validate (models vLLM {VLLM_VERSION})",
        f"trace   {options.trace} ({setting.workload.format_name}): {len(setting.records):,} requests{shorter}",
        f"server  {inputs.shape.name}, {inputs.shape.dtype}, {weights}, on {model.device_name}, "
        f"{'async' if inputs.async_scheduling else 'sync'} scheduling",
        *([replica_line(configs, options)] if has_replicas(options) else []),
        f"step time  {step_time_title(predictor.step_time)}{origin}",
        *(f"note    {note}" for note in inputs.notes),
        *(f"note    not served: {count:,}, {why}" for why, count in _not_served(measured.summary).items()),
        capacity_line(sizing.plan),
    ]


def _not_served(summary: dict[str, Any]) -> dict[str, int]:
    """Requests by the reason why nothing can be compared of them."""
    hanging = {"left, none could be scheduled": summary["unfinished"]} if summary["unfinished"] else {}
    return summary["rejected_by_reason"] | hanging


def _verdict(facts: dict[str, Any], checks: dict[str, Any]) -> str:
    """One line about it all."""
    failed = [name.replace("_", " ") for name, check in checks.items() if not check["passed"]]
    if failed:
        return f"FAILED: {' and '.join(failed)}"
    error = facts["step_time"]["median_error"]
    steps = "" if error is None else f"; steps are predicted within {error:.1%} (median)"
    return f"passed: the same decisions and the same tokens{steps}"
