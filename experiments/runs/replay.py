"""A replay: a simulated server on a trace, and its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Executor
from kvtwin.engine.sizing.cache_plan import CachePlan
from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.records.event_recording import EventFolder, recorded_events
from kvtwin.experiments.records.folder import run_files
from kvtwin.experiments.runs.block_metrics import block_metric_figures
from kvtwin.experiments.runs.facts import Stopwatch, request_progress, run_configuration, run_context
from kvtwin.experiments.runs.host_figures import host_figures
from kvtwin.experiments.runs.summary import summarise
from kvtwin.experiments.runs.verdicts import verdicts
from kvtwin.experiments.setup.engine import allocator_lines, engine_config
from kvtwin.experiments.setup.host_memory import host_link
from kvtwin.experiments.setup.load import shape_load
from kvtwin.experiments.setup.sizing import SizingResult, resolve_sizing
from kvtwin.experiments.setup.speculation import Drafting, read_drafting
from kvtwin.experiments.setup.step_time import step_time_model, step_time_title
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.experiments.sizes.text import capacity_line
from kvtwin.sim.recording import Recorder
from kvtwin.sim.serving import Observe, ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.load import Load
from kvtwin.workloads.workload import Workload


@dataclass(frozen=True)
class Replayed:
    """The results of a replay."""

    summary: dict[str, Any]
    """The figures under the keys of docs/output.md."""
    heading: list[str]
    """Lines that say what was simulated."""
    recorder: Recorder
    configuration: dict[str, Any]
    """Everything resolved that decided the run."""
    machine: dict[str, Any]
    """When and where it ran."""

    def files(self) -> dict[str, bytes]:
        """The files of the run's folder, by name."""
        return run_files(self.recorder, self.configuration, self.summary, self.machine)


def replay(
    options: ReplayOptions,
    workload: Workload | None = None,
    *,
    show_progress: bool = False,
    observe: Observe | None = None,
    events: EventFolder | None = None,
) -> Replayed:
    """Simulate a server on the trace of ``options``, or on ``workload`` instead.

    ``observe`` makes an observer of the scheduler. What ``--events`` and ``--kv-events`` ask for is written into the
    folder ``events``. UserError: settings that cannot be.
    """
    sizing = resolve_sizing(options)
    speculation = read_drafting(options.speculative_config, async_scheduling=sizing.inputs.async_scheduling)
    config = engine_config(options, sizing, speculation)
    step_time = step_time_model(options.step_time, sizing.inputs)
    link = host_link(options, sizing)
    executor = SimulatedExecutor(step_time, link, speculation.acceptance(options.seed) if speculation else None)
    workload = open_trace(options.trace, options) if workload is None else workload
    load = shape_load(options, workload)
    if show_progress:
        warn_of(workload)
    if options.warmup_requests >= load.num_requests:
        raise UserError(f"--warmup-requests: leaves nothing to count of {load.num_requests:,} requests")
    misses = MissSources(config)
    stopwatch = Stopwatch()
    with request_progress("replay", load.num_requests, show=show_progress) as advance:
        recorder = simulate(options, config, executor, load, misses, advance, observe, events)
    machine = stopwatch.facts()
    context = run_context(sizing, load, recorder)
    summary = summarise(recorder, config, sizing.plan, context, options)
    summary |= host_figures(recorder, sizing, link) | misses.figures() | block_metric_figures(recorder)
    summary["num_warmup_requests"] = options.warmup_requests
    summary["num_unsorted"] = workload.num_unsorted
    summary["trace_notes"] = list(workload.warnings)
    summary["verdicts"] = verdicts(summary, recorder, config, load)
    heading = _heading(options, sizing, config, step_time, speculation, workload, summary)
    gpu = sizing.inputs.gpu.name if sizing.inputs.gpu else None
    configuration = run_configuration("replay", options, sizing, gpu, config, step_time.describe())
    return Replayed(summary, heading, recorder, configuration, machine)


def simulate(
    options: ReplayOptions,
    config: EngineConfig,
    executor: Executor[Any],
    load: Load,
    misses: MissSources,
    advance: Callable[[int], None],
    observe: Observe | None = None,
    events: EventFolder | None = None,
) -> Recorder:
    """Run the simulation. UserError: with --strict, the first request that cannot be served."""
    simulation = ServerSimulation(
        config,
        executor,
        ignore_eos=options.ignore_eos,
        max_concurrency=load.max_concurrency,
        check=options.check,
        observe=observe,
        on_progress=advance,
        on_refusal=_raise_refusal if options.strict else None,
        num_warm_up_requests=options.warmup_requests,
    )
    simulation.observers.append(misses)
    try:
        with recorded_events(options, simulation, events):
            recorder = simulation.run(load)
    except OverflowError:
        raise UserError("the simulated time passes 292 years: look at --step-time and the trace's times") from None
    if options.strict and recorder.first_refused:  # the engine rejected requests after it had accepted them
        reason, where = next(iter(recorder.first_refused.items()))
        _raise_refusal(where, reason)
    return recorder


def _raise_refusal(source: str, reason: str) -> None:
    raise UserError(f"{source}: {reason} (--strict)")


def _heading(
    options: ReplayOptions,
    sizing: SizingResult,
    config: EngineConfig,
    step_time: StepTimeModel,
    speculation: Drafting | None,
    workload: Workload,
    summary: dict[str, Any],
) -> list[str]:
    """What was simulated."""
    inputs = sizing.inputs
    unsorted = f", {workload.num_unsorted:,} out of order (sorted)" if workload.num_unsorted else ""
    lines = [
        f"kvtwin replay (models vLLM {VLLM_VERSION})",
        f"trace   {options.trace} ({workload.format_name}): {summary['num_prompts']:,} requests{unsorted}",
        f"server  {inputs.shape.name} on {inputs.gpu.name if inputs.gpu else 'no GPU'}, "
        f"tensor parallel {inputs.tensor_parallel_size}, step time {step_time_title(step_time)}, "
        f"{'async' if inputs.async_scheduling else 'sync'} scheduling",
        *(f"note    {note}" for note in inputs.notes),
        *([f"note    {speculation.describe()}"] if speculation else []),
        *_warm_up_lines(summary["num_warmup_requests"]),
        *_group_lines(sizing.plan),
        *allocator_lines(config),
        capacity_line(sizing.plan),
    ]
    if summary["completed"]:
        lines.append(
            f"Maximum concurrency at the trace's lengths: {summary['max_concurrency_at_mean_length']:.2f}x at the mean "
            f"of {summary['mean_request_tokens']:,.0f} tokens, {summary['max_concurrency_at_p95_length']:.2f}x at "
            f"p95, {summary['p95_request_tokens']:,.0f} tokens"
        )
    return lines


def _warm_up_lines(num_requests: int) -> list[str]:
    """That the start of the run is not counted, if so."""
    if not num_requests:
        return []
    return [f"note    the first {num_requests:,} requests warm the server up: in no figure but the number of requests"]


def _group_lines(plan: CachePlan) -> list[str]:
    """What kinds of cache groups there are, unless it is one group of full attention."""
    kinds = Counter((group.kind, group.window_tokens, group.block_size) for group in plan.groups)
    if list(kinds) == [("full_attention", None, plan.groups[0].block_size)]:
        return []
    texts = [
        f"{count} x {kind}{f' of {window:,} tokens' if window else ''} in blocks of {block_size}"
        for (kind, window, block_size), count in kinds.items()
    ]
    return [f"groups  {', '.join(texts)}"]
