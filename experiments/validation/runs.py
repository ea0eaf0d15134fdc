"""The two runs of a validation: one that is really computed, and its simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.experiments.files.interruption import InterruptibleExecutor
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.records import executed_steps
from kvtwin.experiments.records.folder import run_files
from kvtwin.experiments.runs.facts import Stopwatch, request_progress, run_configuration, run_context
from kvtwin.experiments.runs.host_figures import host_figures
from kvtwin.experiments.runs.paired_latencies import Pairs
from kvtwin.experiments.runs.summary import summarise
from kvtwin.experiments.validation.predictor import Predictor
from kvtwin.experiments.validation.settings import Setting
from kvtwin.experiments.validation.transcripts import Transcripts
from kvtwin.sim.decided_steps import DecidedStep, DecisionRecorder
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.recording import Recorder
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord

if TYPE_CHECKING:
    from kvtwin.gpu.executor import DeviceExecutor


@dataclass(frozen=True)
class MeasuredRun:
    """What a real run left."""

    files: dict[str, bytes]
    """Those of its folder."""
    decided: Sequence[DecidedStep]
    executed: Sequence[ExecutedStep]
    transcripts: Transcripts
    failure: BaseException | None
    """Why it ended early, if it did: the device's memory was used up, or the user interrupted."""


def measure(setting: Setting, executor: DeviceExecutor) -> MeasuredRun:
    """Serve the workload for real, on a virtual clock that passes the time that the device was busy."""
    from kvtwin.gpu.errors import OutOfDeviceMemory

    misses, transcripts = MissSources(setting.config), Transcripts(executor)
    interruptible = InterruptibleExecutor(executor)
    failure: BaseException | None
    executor.executed.clear()  # what was measured before is not of this run
    stopwatch = Stopwatch()
    with request_progress("measuring", len(setting.records)) as advance:
        simulation = setting.simulation(interruptible, advance)
        decisions = DecisionRecorder(simulation.scheduler)
        simulation.observers += [misses, decisions, transcripts]
        if setting.options.debug:
            executor.poison(simulation.scheduler.kv_cache.pool)
        try:
            with interruptible.listening():
                recorder = simulation.run(setting.records)
        except (OutOfDeviceMemory, KeyboardInterrupt) as error:
            interruptible.finish()
            recorder, failure = simulation.close(), error
        else:
            failure = interruptible.interruption  # behind the last step
    files = _files(setting, recorder, misses, None, {"model": "measured"}, stopwatch)
    files[executed_steps.NAME] = executed_steps.executed_file(decisions.steps, executor.executed)
    return MeasuredRun(files, decisions.steps, list(executor.executed), transcripts, failure)


def predict(setting: Setting, records: Iterable[RequestRecord], predictor: Predictor) -> dict[str, bytes]:
    """Simulate the same workload; the files of the run's folder."""
    misses = MissSources(setting.config)
    stopwatch = Stopwatch()
    with request_progress("predicting", len(setting.records)) as advance:
        simulation = setting.simulation(SimulatedExecutor(predictor.step_time, predictor.link), advance)
        simulation.observers.append(misses)
        recorder = simulation.run(list(records))
    return _files(setting, recorder, misses, predictor.link, predictor.step_time.describe(), stopwatch)


def step_times(measured: MeasuredRun, predictor: Predictor) -> Pairs:
    """Of each measured step with requests, how long it took, and how long the model says that it takes."""
    pairs = [
        (executed.duration_ns, predictor.duration_ns(decided))
        for decided, executed in zip(measured.decided, measured.executed, strict=False)
        if decided.request_ids
    ]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Pairs(both[:, 0], both[:, 1])


def _files(
    setting: Setting,
    recorder: Recorder,
    misses: MissSources,
    link: HostLink | None,
    step_time: dict[str, Any],
    stopwatch: Stopwatch,
) -> dict[str, bytes]:
    """A run's folder, of the same shape for both runs."""
    options, load, sizing, config = setting.options, setting.load, setting.sizing, setting.config
    context = run_context(sizing, load, recorder)
    summary = summarise(recorder, config, sizing.plan, context, setting.options)
    summary |= host_figures(recorder, sizing, link) | misses.figures()
    summary |= {"num_warmup_requests": options.warmup_requests, "num_unsorted": setting.workload.num_unsorted}
    summary["trace_notes"] = list(setting.workload.warnings)
    configuration = run_configuration("validate", options, sizing, setting.model.device_name, config, step_time)
    return run_files(recorder, configuration, summary | {"verdicts": []}, stopwatch.facts())
