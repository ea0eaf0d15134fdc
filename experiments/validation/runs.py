"""The two runs of a validation: one that is really computed, and its simulation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtwin.engine.executed_step import ExecutedStep
from kvtwin.experiments.files.interruption import InterruptibleExecutor, Interruption
from kvtwin.experiments.records import executed_steps
from kvtwin.experiments.records.folder import SUMMARY
from kvtwin.experiments.runs.facts import Stopwatch, request_progress
from kvtwin.experiments.runs.paired_latencies import Pairs
from kvtwin.experiments.runs.spread import VARIATIONS, Spread, spread_between
from kvtwin.experiments.validation.predictor import Predictor
from kvtwin.experiments.validation.run_files import RunKind, files_of
from kvtwin.experiments.validation.serving import Serving
from kvtwin.experiments.validation.settings import Setting
from kvtwin.experiments.validation.transcripts import Transcripts
from kvtwin.sim.decided_steps import DecidedStep, DecisionRecorder
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord

if TYPE_CHECKING:
    from kvtwin.gpu.alone import Transcript
    from kvtwin.gpu.executor import DeviceExecutor


@dataclass(frozen=True)
class MeasuredServer:
    """What one server of a real run left."""

    decided: Sequence[DecidedStep]
    executed: Sequence[ExecutedStep]
    transcripts: Sequence[Transcript]

    @property
    def served_any(self) -> bool:
        """Whether a request came to it that it could serve."""
        return any(step.request_ids for step in self.decided)


@dataclass(frozen=True)
class MeasuredRun:
    """What a real run left."""

    files: dict[str, bytes]
    """Those of its folder."""
    servers: Sequence[MeasuredServer]
    records: Sequence[RequestRecord]
    """What was sent, with what the model said to the first sample of each."""
    failure: BaseException | None
    """Why it ended early, if it did: the device's memory was used up, or the user interrupted."""


def measure(setting: Setting, executors: Sequence[DeviceExecutor]) -> MeasuredRun:
    """Serve the workload for real, on a virtual clock that passes the time that the device was busy.

    Each server has an executor, and each is as busy as if the device were its own.
    """
    from kvtwin.gpu.errors import OutOfDeviceMemory

    interruption = Interruption()
    interruptible = [InterruptibleExecutor(executor, interruption) for executor in executors]
    failure: BaseException | None
    for executor in executors:
        executor.executed.clear()  # what was measured before is not of this run
    stopwatch = Stopwatch()
    with request_progress("measuring", len(setting.records)) as advance:
        serving = Serving(setting, interruptible, advance)
        decisions = [DecisionRecorder(simulation.scheduler) for simulation in serving.simulations]
        transcripts = [Transcripts(executor) for executor in executors]
        for simulation, *observers in zip(serving.simulations, decisions, transcripts, strict=True):
            simulation.observers += observers
        if setting.options.debug:
            for simulation, executor in zip(serving.simulations, executors, strict=True):
                executor.poison(simulation.scheduler.kv_cache.pool)
        try:
            with interruption.listening():
                recorder = serving.run(setting.records)
        except (OutOfDeviceMemory, KeyboardInterrupt) as error:
            for each in interruptible:
                each.finish()
            recorder, failure = serving.close(), error
        else:
            failure = interruption.ended  # behind the last step
    kind = RunKind({"model": "measured"}, [None] * len(executors))
    servers = [
        MeasuredServer(decided.steps, list(executor.executed), said.transcripts)
        for decided, executor, said in zip(decisions, executors, transcripts, strict=True)
    ]
    records = [executed_steps.executed_file(server.decided, server.executed) for server in servers]
    files = files_of(setting, serving, recorder, kind, stopwatch.facts(), {executed_steps.NAME: records})
    outputs = {record: output for said in transcripts for record, output in said.outputs.items()}
    answered = [
        replace(record, output_token_ids=outputs.get(id(serving.served_as(record)))) for record in setting.records
    ]
    return MeasuredRun(files, servers, answered, failure)


def predict(setting: Setting, records: Sequence[RequestRecord], predictors: Sequence[Predictor]) -> dict[str, bytes]:
    """Simulate the same workload; the files of the run's folder. There is a predictor per server."""
    stopwatch = Stopwatch()
    with request_progress("predicting", len(setting.records)) as advance:
        serving = Serving(setting, [SimulatedExecutor(each.step_time, each.link) for each in predictors], advance)
        recorder = serving.run(records)
    kind = RunKind(predictors[0].step_time.describe(), [each.link for each in predictors])
    return files_of(setting, serving, recorder, kind, stopwatch.facts(), {})


def predicted_spread(
    setting: Setting, records: Sequence[RequestRecord], predictors: Sequence[Predictor], predicted: dict[str, Any]
) -> Spread:
    """How far apart the figures of the simulation are, ``predicted`` being its summary, with other step times."""
    summaries = [predicted]
    for variation in VARIATIONS:
        others = [replace(each, step_time=variation.of(each.step_time)) for each in predictors]
        summaries.append(json.loads(predict(setting, records, others)[SUMMARY]))
    return spread_between(summaries)


def step_times(measured: MeasuredRun, predictors: Sequence[Predictor]) -> Pairs:
    """Of each measured step with requests, how long it took, and how long the model says that it takes."""
    pairs = [
        (executed.duration_ns, predictor.duration_ns(decided))
        for server, predictor in zip(measured.servers, predictors, strict=True)
        for decided, executed in zip(server.decided, server.executed, strict=False)
        if decided.request_ids
    ]
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Pairs(both[:, 0], both[:, 1])
