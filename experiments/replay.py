"""``kvtwin replay``: simulate a server that is sent a trace, and print what came of it."""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.config import VLLM_VERSION, EngineConfig
from experiments.errors import UserError
from experiments.replay_options import (
    DEFAULT_GPU,
    DEFAULT_MODEL,
    Load,
    add_load_arguments,
    add_scheduler_arguments,
    add_step_time_arguments,
    add_trace_arguments,
    engine_config,
    open_trace,
    shape_load,
    step_time_model,
)
from experiments.run_folder import check_free, write_run_folder
from experiments.run_summary import LATENCIES, RunContext, summarise
from experiments.run_text import bench_lines, cache_lines
from experiments.size import capacity_line
from experiments.sizing_options import SizingResult, add_sizing_arguments, resolve_sizing
from experiments.verdicts import overload_verdict, zero_hits_verdict
from sim.recording import Recorder
from sim.serving import ServerSimulation
from sim.step_time import StepTimeModel

PROGRESS_DELAY_S = 2

EPILOGUE = """\
examples:
  kvtwin replay conversation_trace.jsonl.gz --model meta-llama/Llama-3.1-8B --gpu h200 --rate-scale 0.4
  kvtwin replay trace.csv --num-gpu-blocks-override 40000 --block-size 32 --out runs/first
  kvtwin replay trace.jsonl --max-concurrency 8 --step-time zero --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``replay``."""
    add_trace_arguments(parser)
    add_sizing_arguments(parser)
    parser.set_defaults(model=DEFAULT_MODEL, gpu=DEFAULT_GPU)
    add_scheduler_arguments(parser)
    add_load_arguments(parser)
    add_step_time_arguments(parser)
    add_output_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """What is printed and kept."""
    group = parser.add_argument_group("output")
    group.add_argument("--out", type=Path, metavar="DIR", help="keep the run in a new folder")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    group.add_argument("--percentile-metrics", default=",".join(LATENCIES), metavar="NAMES", help="latencies to print")
    group.add_argument("--metric-percentiles", default="99", metavar="PERCENTS", help="such as 50,90,99")
    group.add_argument("--goodput", nargs="+", metavar="NAME:MS", help="service levels, such as ttft:500,tpot:50")
    group.add_argument("--check", action="store_true", help="verify the engine's invariants after every step (slow)")


def run(args: argparse.Namespace) -> int:
    """Replay a trace. Exit code 1 when nothing was completed."""
    metrics, percentiles, goodput_ms = _output_settings(args)
    if args.out:
        check_free(args.out)
    sizing = resolve_sizing(args)
    config = engine_config(args, sizing)
    step_time = step_time_model(args, sizing)
    workload = open_trace(args)
    load = shape_load(args, workload)
    for warning in workload.warnings:
        print(f"kvtwin: warning: {warning}", file=sys.stderr)
    started_s = time.perf_counter()
    with _progress(load.num_requests) as advance:
        recorder = simulate(args, config, step_time, load, advance)
    elapsed_s = time.perf_counter() - started_s
    context = RunContext(
        model=sizing.inputs.shape.name,
        num_prompts=load.num_requests,
        request_rate=_request_rate(load, recorder),
        burstiness=load.burstiness,
        max_concurrency=load.max_concurrency,
        percentiles=percentiles,
        goodput_ms=goodput_ms,
    )
    summary = summarise(recorder, config, context)
    summary["num_unsorted"] = workload.num_unsorted
    summary["verdicts"] = _verdicts(summary, recorder, config, load)
    if args.out:
        record = _configuration(args, sizing, config, step_time)
        write_run_folder(args.out, recorder, record, summary, _machine(elapsed_s))
    if args.json:
        print(json.dumps({"date": _now()} | summary, indent=2))
    else:
        print("\n".join(_text(args, sizing, step_time, workload, summary, metrics, percentiles)))
    return 0 if summary["completed"] else 1


def simulate(
    args: argparse.Namespace,
    config: EngineConfig,
    step_time: StepTimeModel,
    load: Load,
    advance: Callable[[int], None],
) -> Recorder:
    """Run the simulation. UserError: with --strict, the first request that cannot be served."""
    simulation = ServerSimulation(
        config,
        step_time,
        ignore_eos=args.ignore_eos,
        max_concurrency=load.max_concurrency,
        check=args.check,
        on_progress=advance,
        on_refusal=_raise_refusal if args.strict else None,
    )
    return simulation.run(load)


def _raise_refusal(source: str, reason: str) -> None:
    raise UserError(f"{source}: {reason}")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr for runs of more than two seconds; call it with the number done."""
    with tqdm(total=total, unit="req", delay=PROGRESS_DELAY_S, mininterval=0.5, leave=False, desc="replay") as bar:

        def advance(num_done: int) -> None:
            bar.update(num_done - bar.n)

        yield advance


def _request_rate(load: Load, recorder: Recorder) -> float:
    """The offered rate in requests per second: as asked, or as the trace had it; inf when nothing waits."""
    if load.request_rate is not None:
        return load.request_rate
    arrivals = recorder.requests.arrival_ns
    span_ns = max(arrivals) - min(arrivals) if len(arrivals) else 0
    return math.inf if load.ignores_arrivals or span_ns == 0 else len(arrivals) / span_ns * 1e9


def _verdicts(summary: dict[str, Any], recorder: Recorder, config: EngineConfig, load: Load) -> list[str]:
    found = [
        zero_hits_verdict(summary, config, load),
        overload_verdict(recorder, rate_scale=load.rate_scale, closed_loop=load.max_concurrency is not None),
    ]
    if recorder.unfinished:
        found.append(
            f"no progress: {len(recorder.unfinished)} requests were left when nothing could move any more, first "
            f"{recorder.unfinished[0]}; vLLM would hang here (without --vllm-strict such requests are rejected)"
        )
    for reason, where in recorder.first_refused.items():
        found.append(f"rejected, {reason}: first {where}")
    return [verdict for verdict in found if verdict]


def _text(
    args: argparse.Namespace,
    sizing: SizingResult,
    step_time: StepTimeModel,
    workload: Any,
    summary: dict[str, Any],
    metrics: tuple[str, ...],
    percentiles: tuple[float, ...],
) -> list[str]:
    plan, inputs = sizing.plan, sizing.inputs
    unsorted = f", {workload.num_unsorted:,} out of order (sorted)" if workload.num_unsorted else ""
    lines = [
        f"kvtwin replay (models vLLM {VLLM_VERSION})",
        f"trace   {args.trace} ({workload.format_name}): {summary['num_prompts']:,} requests{unsorted}",
        f"server  {inputs.shape.name} on {inputs.gpu.name if inputs.gpu else 'no GPU'}, "
        f"tensor parallel {inputs.tensor_parallel_size}, step time {step_time.name}, "
        f"{'async' if inputs.async_scheduling else 'sync'} scheduling",
        capacity_line(plan),
    ]
    lengths = _request_lengths(summary)
    if lengths:
        mean = plan.concurrency_at(max(1, round(lengths)))
        lines.append(f"Concurrency at the trace's mean length of {lengths:,.0f} tokens: {mean:.2f}x")
    lines += ["", *bench_lines(summary, metrics, percentiles), *cache_lines(summary)]
    lines += [f"* {verdict}" for verdict in summary["verdicts"]]
    return lines


def _request_lengths(summary: dict[str, Any]) -> float:
    """Mean tokens of a served request, prompt and output."""
    tokens: int = summary["total_input_tokens"] + summary["total_output_tokens"]
    return tokens / summary["completed"] if summary["completed"] else 0.0


def _configuration(
    args: argparse.Namespace, sizing: SizingResult, config: EngineConfig, step_time: StepTimeModel
) -> dict[str, Any]:
    """Everything resolved that decided the run."""
    from importlib.metadata import version

    options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    return {
        "kvtwin_version": version("kvtwin"),
        "vllm_version": VLLM_VERSION,
        "command": "replay",
        "options": {name: value for name, value in options.items() if name not in ("out", "json")},
        "model": sizing.inputs.shape.name,
        "gpu": sizing.inputs.gpu.name if sizing.inputs.gpu else None,
        "engine": asdict(config),
        "step_time": step_time.describe(),
    }


def _machine(elapsed_s: float) -> dict[str, Any]:
    return {
        "date": _now(),
        "wall_s": round(elapsed_s, 3),
        "cpu_s": round(time.process_time(), 3),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S")


def _output_settings(
    args: argparse.Namespace,
) -> tuple[tuple[str, ...], tuple[float, ...], tuple[tuple[str, float], ...]]:
    metrics = tuple(name.strip() for name in args.percentile_metrics.split(",") if name.strip())
    for name in metrics:
        if name not in LATENCIES:
            raise UserError(f"--percentile-metrics: expected names among {', '.join(LATENCIES)}, got {name!r}")
    percentiles = tuple(_number("--metric-percentiles", text) for text in args.metric_percentiles.split(","))
    if not all(0 <= percent <= 100 for percent in percentiles):
        raise UserError(f"--metric-percentiles: expected 0 to 100, got {args.metric_percentiles}")
    return metrics, percentiles, _goodput(args.goodput or [])


def _goodput(words: list[str]) -> tuple[tuple[str, float], ...]:
    """Service levels from ``ttft:500,tpot:50``, in one word or several."""
    levels = []
    for word in ",".join(words).split(","):
        if not word:
            continue
        name, _, limit = word.partition(":")
        if name not in ("ttft", "tpot", "e2el"):
            raise UserError(f"--goodput: expected ttft, tpot or e2el and milliseconds, such as ttft:500, got {word!r}")
        levels.append((name, _number("--goodput", limit)))
    return tuple(levels)


def _number(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise UserError(f"{flag}: expected a number of at least 0, got {text!r}")
    return value
