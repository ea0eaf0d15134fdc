"""``kvtwin replay``: simulate a server that is sent a trace, and print what came of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.engine.config import VLLM_VERSION, EngineConfig
from kvtwin.engine.executor import Executor
from kvtwin.engine.sizing.cache_plan import CachePlan
from kvtwin.experiments.commands.size import capacity_line
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.events.recording import add_event_arguments, event_folder, recorded_events
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.misses.verdicts import verdicts
from kvtwin.experiments.options.allocator import add_allocator_argument, allocator_lines
from kvtwin.experiments.options.engine import add_engine_arguments, engine_config
from kvtwin.experiments.options.host_memory import host_figures, host_link
from kvtwin.experiments.options.load import Load, add_load_arguments, shape_load
from kvtwin.experiments.options.output import add_output_arguments, output_settings
from kvtwin.experiments.options.sizing import SizingResult, add_sizing_arguments, resolve_sizing
from kvtwin.experiments.options.speculation import SpeculationOptions, speculation_options
from kvtwin.experiments.options.step_time import add_step_time_arguments, step_time_model, step_time_title
from kvtwin.experiments.options.trace import add_trace_arguments, open_trace
from kvtwin.experiments.runs.block_metrics import block_metric_figures
from kvtwin.experiments.runs.facts import Stopwatch, now, request_progress, run_configuration, run_context
from kvtwin.experiments.runs.folder import check_free, run_files, write_run_folder
from kvtwin.experiments.runs.summary import summarise
from kvtwin.experiments.runs.text import bench_lines, cache_lines
from kvtwin.sim.recording import Recorder
from kvtwin.sim.serving import Observe, ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.workload import Workload

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B"
DEFAULT_GPU = "h200"

EPILOGUE = """\
examples:
  kvtwin replay conversation_trace.jsonl.gz --model meta-llama/Llama-3.1-8B --gpu h200 --rate-scale 0.4
  kvtwin replay trace.csv --num-gpu-blocks-override 40000 --block-size 32 --out first-run
  kvtwin replay trace.jsonl --max-concurrency 8 --step-time zero --json

Exit code: 0; 1 when no request completed, or some never could; 2 for a mistake in the input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replay``."""
    add_trace_arguments(parser)
    add_sizing_arguments(parser)
    parser.set_defaults(model=DEFAULT_MODEL, gpu=DEFAULT_GPU)
    add_engine_arguments(parser)
    add_allocator_argument(parser)
    add_load_arguments(parser)
    add_step_time_arguments(parser)
    add_output_arguments(parser)
    add_event_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Replay a trace. Exit code 1 when nothing was completed, or the server hung."""
    if args.out:
        check_free(args.out)
    with event_folder(args) as streamed:
        replayed = replay(args, show_progress=True, events=streamed)
        summary = replayed.summary
        if args.out:
            write_run_folder(args.out, replayed.files(), streamed)
    if args.json:
        print(json.dumps({"date": now()} | summary, indent=2, allow_nan=False))
    else:
        lines = [*replayed.heading, "", *bench_lines(summary, output_settings(args)), *cache_lines(summary)]
        print("\n".join([*lines, *(f"* {verdict}" for verdict in summary["verdicts"])]))
    return 0 if summary["completed"] and not summary["unfinished"] else 1


@dataclass(frozen=True)
class Replayed:
    """What came of a replay."""

    summary: dict[str, Any]
    """The figures under the keys of docs/output.md."""
    heading: list[str]
    """Lines that say what was simulated."""
    recorder: Recorder
    _configuration: dict[str, Any]
    _machine: dict[str, Any]

    def files(self) -> dict[str, bytes]:
        """The files of the run's folder, by name."""
        return run_files(self.recorder, self._configuration, self.summary, self._machine)


def replay(
    args: argparse.Namespace,
    open_trace: Callable[[argparse.Namespace], Workload] = open_trace,
    *,
    show_progress: bool = False,
    observe: Observe | None = None,
    events: Path | None = None,
) -> Replayed:
    """Simulate a server that is sent the trace that ``open_trace`` opens. UserError: settings that cannot be.

    ``observe`` makes an observer of the scheduler. What ``--events`` and ``--kv-events`` ask for is written into the
    folder ``events``.
    """
    output = output_settings(args)
    sizing = resolve_sizing(args)
    speculation = speculation_options(args.speculative_config, async_scheduling=sizing.inputs.async_scheduling)
    config = engine_config(args, sizing, speculation)
    step_time = step_time_model(args.step_time, sizing.inputs)
    link = host_link(args, sizing)
    executor = SimulatedExecutor(step_time, link, speculation.acceptance(args.seed) if speculation else None)
    workload = open_trace(args)
    load = shape_load(args, workload)
    if show_progress:
        for warning in workload.warnings:
            print(f"kvtwin: warning: {warning}", file=sys.stderr)
    if args.warmup_requests >= load.num_requests:
        raise UserError(f"--warmup-requests: nothing is left to count of {load.num_requests:,} requests")
    misses = MissSources(config)
    stopwatch = Stopwatch()
    with request_progress("replay", load.num_requests, show=show_progress) as advance:
        recorder = simulate(args, config, executor, load, misses, advance, observe, events)
    machine = stopwatch.facts()
    context = run_context(sizing, load, recorder)
    summary = summarise(recorder, config, sizing.plan, context, output)
    summary |= host_figures(recorder, sizing, link) | misses.figures() | block_metric_figures(recorder)
    summary["num_warmup_requests"] = args.warmup_requests
    summary["num_unsorted"] = workload.num_unsorted
    summary["verdicts"] = verdicts(summary, recorder, config, load)
    heading = _heading(args, sizing, config, step_time, speculation, workload, summary)
    gpu = sizing.inputs.gpu.name if sizing.inputs.gpu else None
    configuration = run_configuration("replay", args, sizing, gpu, config, step_time.describe())
    return Replayed(summary, heading, recorder, configuration, machine)


def simulate(
    args: argparse.Namespace,
    config: EngineConfig,
    executor: Executor[Any],
    load: Load,
    misses: MissSources,
    advance: Callable[[int], None],
    observe: Observe | None = None,
    events: Path | None = None,
) -> Recorder:
    """Run the simulation. UserError: with --strict, the first request that cannot be served."""
    simulation = ServerSimulation(
        config,
        executor,
        ignore_eos=args.ignore_eos,
        max_concurrency=load.max_concurrency,
        check=args.check,
        observe=observe,
        on_progress=advance,
        on_refusal=_raise_refusal if args.strict else None,
        num_warm_up_requests=args.warmup_requests,
    )
    simulation.observers.append(misses)
    try:
        with recorded_events(args, simulation, events):
            recorder = simulation.run(load)
    except OverflowError:
        raise UserError("the simulated time passes 292 years: look at --step-time and the trace's times") from None
    if args.strict and recorder.first_refused:  # the engine gave up requests that it had taken
        reason, where = next(iter(recorder.first_refused.items()))
        _raise_refusal(where, reason)
    return recorder


def _raise_refusal(source: str, reason: str) -> None:
    raise UserError(f"{source}: {reason} (--strict)")


def _heading(
    args: argparse.Namespace,
    sizing: SizingResult,
    config: EngineConfig,
    step_time: StepTimeModel,
    speculation: SpeculationOptions | None,
    workload: Workload,
    summary: dict[str, Any],
) -> list[str]:
    """What was simulated."""
    inputs = sizing.inputs
    unsorted = f", {workload.num_unsorted:,} out of order (sorted)" if workload.num_unsorted else ""
    lines = [
        f"kvtwin replay (models vLLM {VLLM_VERSION})",
        f"trace   {args.trace} ({workload.format_name}): {summary['num_prompts']:,} requests{unsorted}",
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
