"""The options of ``replay`` beyond the size of the cache: scheduling, load, step time."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from engine.block_hashes import HASH_ALGORITHMS
from engine.config import SCHEDULING_POLICIES, EngineConfig
from experiments.errors import UserError
from experiments.sizing_options import SizingResult
from sim.linear import LinearStepTime
from sim.roofline import RooflineStepTime
from sim.step_time import StepTimeModel
from workloads import RequestRecord, Workload, open_workload
from workloads.formats import FORMATS
from workloads.load_shaping import first_requests, scale_rate, set_request_rate

NOT_MODELLED = {
    "--data-parallel-size": "run one replay per replica",
    "--decode-context-parallel-size": "context parallelism is not modelled",
    "--kv-offloading-size": "offloading is not modelled yet",
    "--kv-offloading-backend": "offloading is not modelled yet",
    "--kv-transfer-config": "KV connectors are not modelled",
    "--kv-events-config": "the engine makes KV events, but no command publishes them yet",
    "--kv-cache-metrics": "block life-time metrics are not modelled yet",
    "--kv-cache-metrics-sample": "block life-time metrics are not modelled yet",
    "--speculative-config": "speculative decoding is not modelled yet",
    "--prefix-match-unit": "only blocks of one size are modelled yet",
    "--prefix-cache-retention-interval": "window and state-space groups are not modelled yet",
    "--mamba-block-size": "state-space groups are not modelled yet",
    "--mamba-cache-mode": "state-space groups are not modelled yet",
    "--mamba-cache-dtype": "state-space groups are not modelled yet",
    "--mamba-ssm-cache-dtype": "state-space groups are not modelled yet",
    "--swap-space": "vLLM 0.33 has no such flag any more",
    "--preemption-mode": "vLLM 0.33 has no such flag any more",
    "--max-num-partial-prefills": "vLLM 0.33 has no such flag any more",
    "--max-long-partial-prefills": "vLLM 0.33 has no such flag any more",
    "--num-lookahead-slots": "vLLM 0.33 has no such flag any more",
    "--enforce-eager": "CUDA graphs enter by --cuda-graph-bytes and the step-time model",
    "--scheduler-cls": "only vLLM's own schedulers are modelled",
    "--disable-sliding-window": "--disable-hybrid-kv-cache-manager treats windows as full attention",
    "--swap-threads": "vLLM 0.33 has no such flag any more",
}
"""Flags of vLLM, now or once, that would change the result and are refused by name, with the reason."""

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B"
DEFAULT_GPU = "h200"
LINEAR_EXAMPLE = Path(__file__).parent / "configs" / "step-time-linear.yaml"


class _Refuse(argparse.Action):
    """A flag that is known and not modelled."""

    def __call__(self, parser: argparse.ArgumentParser, *_args: Any, **_kwargs: Any) -> None:
        flag = self.option_strings[0]
        raise UserError(f"{flag}: not modelled: {NOT_MODELLED[flag]}")


def add_scheduler_arguments(parser: argparse.ArgumentParser) -> None:
    """vLLM's scheduling and caching flags."""
    group = parser.add_argument_group("scheduling and prefix caching (vLLM's flags and defaults)")
    add, switch = group.add_argument, argparse.BooleanOptionalAction
    add("--scheduling-policy", choices=SCHEDULING_POLICIES, default="fcfs")
    add("--enable-chunked-prefill", action=switch, default=True)
    add("--max-num-scheduled-tokens", type=int, metavar="TOKENS", help="token budget, if below the batched tokens")
    add("--max-num-active-seqs", type=int, metavar="SEQS", help="requests that may run, if below --max-num-seqs")
    add("--long-prefill-token-threshold", type=int, default=0, metavar="TOKENS", help="most a prefill gets per step")
    add("--long-prefill-token-threshold-adaptive", action=switch, default=False)
    add("--scheduler-reserve-full-isl", action=switch, default=True, help="admit only what fits whole")
    add("--watermark", type=float, default=0.0, metavar="SHARE", help="share of blocks that admission leaves free")
    add("--prefill-schedule-interval", type=int, default=1, metavar="STEPS")
    add("--prefix-caching-hash-algo", choices=HASH_ALGORITHMS, default="sha256")
    add("--enable-lora", action=switch, default=False)
    add("--max-loras", type=int, metavar="N", help="adapters that may run at once (1 with --enable-lora)")
    add("--vllm-strict", action="store_true", help="keep vLLM's misbehaviour too; see docs/deviations.md")
    for flag in NOT_MODELLED:
        add(flag, action=_Refuse, nargs="?", help=argparse.SUPPRESS)


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """The load, with the names of ``vllm bench serve``."""
    group = parser.add_argument_group("load (as in vllm bench serve)")
    add = group.add_argument
    add("--num-prompts", type=int, metavar="N", help="only the first N requests")
    add("--rate-scale", type=float, default=1.0, metavar="X", help="replay X times as fast (0.5: half the rate)")
    add("--request-rate", type=float, metavar="RPS", help="new arrival times at this rate; inf: all at once")
    add("--burstiness", type=float, default=1.0, metavar="B", help="1: Poisson; below 1 burstier (with --request-rate)")
    add(
        "--max-concurrency",
        type=int,
        metavar="N",
        help="closed loop of N clients; arrival times are ignored unless --request-rate or --rate-scale is given",
    )
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="outputs end by length; with --no-ignore-eos by an EOS token, which async scheduling sees a step late",
    )
    add("--seed", type=int, default=0, help="of drawn arrival times")
    add("--strict", action="store_true", help="stop at the first request that cannot be served, instead of counting")


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """The workload file and how to read it."""
    parser.add_argument("trace", help="workload file; plain, gzip or xz; format recognised from its content")
    group = parser.add_argument_group("reading the trace")
    group.add_argument("--format", choices=tuple(FORMATS), help="force a format")
    group.add_argument("--timed-trace-chunk-hash-size", type=int, metavar="TOKENS", help="tokens per hash id (512)")
    group.add_argument("--timed-trace-sec-multiplier", type=float, metavar="S", help="seconds per time unit (0.001)")
    for key in ("timestamp", "input-length", "output-length", "hash-ids"):
        group.add_argument(f"--timed-trace-label-{key}", metavar="KEY", help=argparse.SUPPRESS)


def add_step_time_arguments(parser: argparse.ArgumentParser) -> None:
    """How long steps take."""
    group = parser.add_argument_group("step time")
    group.add_argument(
        "--step-time",
        default="roofline",
        metavar="MODEL",
        help="roofline (from model and GPU), zero, linear (an example's coefficients), or a YAML file of coefficients",
    )


def open_trace(args: argparse.Namespace) -> Workload:
    """The workload of the command line. WorkloadError: it cannot be read."""
    options: dict[str, Any] = {}
    if args.timed_trace_chunk_hash_size is not None:
        options["hash_block_tokens"] = args.timed_trace_chunk_hash_size
    if args.timed_trace_sec_multiplier is not None:
        options["time_unit_ns"] = round(args.timed_trace_sec_multiplier * 1e9)
    for key in ("timestamp", "input_length", "output_length", "hash_ids"):
        if (label := getattr(args, f"timed_trace_label_{key}")) is not None:
            options[f"{key}_key"] = label
    try:
        return open_workload(args.trace, args.format, **options)
    except ValueError as error:
        raise UserError(str(error)) from None


@dataclass(frozen=True)
class Load:
    """What is sent: a workload with its arrival times shaped. Each iteration starts anew."""

    workload: Iterable[RequestRecord]
    num_requests: int
    rate_scale: float
    request_rate: float | None
    burstiness: float
    max_concurrency: int | None
    seed: int

    @property
    def ignores_arrivals(self) -> bool:
        """Whether clients send as soon as they may."""
        return self.max_concurrency is not None and self.request_rate is None and self.rate_scale == 1.0

    def __iter__(self) -> Any:
        records = iter(first_requests(self.workload, self.num_requests))
        if self.ignores_arrivals:
            return set_request_rate(records, self.num_requests, float("inf"))
        if self.request_rate is not None:
            return set_request_rate(records, self.num_requests, self.request_rate, self.burstiness, self.seed)
        if self.rate_scale != 1.0:
            return scale_rate(records, self.rate_scale)
        return records


def shape_load(args: argparse.Namespace, workload: Any) -> Load:
    """The load of the command line. UserError: a setting out of range or one that excludes another."""
    for name in ("num_prompts", "max_concurrency"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')}: expected at least 1, got {value}")
    if not 0 < args.rate_scale < float("inf"):
        raise UserError(f"--rate-scale: expected a number above 0, got {args.rate_scale}")
    if args.request_rate is not None and not args.request_rate > 0:
        raise UserError(f"--request-rate: expected a number above 0, or inf, got {args.request_rate}")
    if not 0 < args.burstiness < float("inf"):
        raise UserError(f"--burstiness: expected a number above 0, got {args.burstiness}")
    if args.request_rate is not None and args.rate_scale != 1.0:
        raise UserError("--request-rate and --rate-scale exclude each other: one replaces, one scales arrival times")
    if args.burstiness != 1.0 and args.request_rate is None:
        raise UserError("--burstiness: needs --request-rate")
    num_requests = min(len(workload), args.num_prompts or len(workload))
    return Load(
        workload, num_requests, args.rate_scale, args.request_rate, args.burstiness, args.max_concurrency, args.seed
    )


def engine_config(args: argparse.Namespace, sizing: SizingResult) -> EngineConfig:
    """The engine's configuration. UserError: a setting out of range, or a model that needs more than one group."""
    plan, inputs = sizing.plan, sizing.inputs
    if inputs.pipeline_parallel_size != 1:
        raise UserError("--pipeline-parallel-size: replay models one pipeline stage so far; `size` plans several")
    if len(plan.groups) != 1 or plan.groups[0].kind != "full":
        kinds = ", ".join(sorted({group.kind for group in plan.groups}))
        raise UserError(
            f"{inputs.shape.name}: needs {len(plan.groups)} cache groups ({kinds}); replay models one group of full "
            "attention so far: --disable-hybrid-kv-cache-manager treats windows as full attention"
        )
    max_loras = args.max_loras if args.max_loras is not None else 1
    try:
        return EngineConfig(
            num_blocks=plan.num_blocks,
            block_size=plan.groups[0].block_size,
            max_model_len=plan.max_model_len,
            max_num_seqs=inputs.max_num_seqs,
            max_num_active_seqs=args.max_num_active_seqs,
            max_num_batched_tokens=inputs.max_num_batched_tokens,
            max_num_scheduled_tokens=args.max_num_scheduled_tokens,
            enable_prefix_caching=inputs.enable_prefix_caching,
            prefix_caching_hash_algo=args.prefix_caching_hash_algo,
            hash_seed=os.environ.get("PYTHONHASHSEED"),
            enable_chunked_prefill=args.enable_chunked_prefill,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=args.long_prefill_token_threshold_adaptive,
            scheduling_policy=args.scheduling_policy,
            watermark=args.watermark,
            scheduler_reserve_full_isl=args.scheduler_reserve_full_isl,
            prefill_schedule_interval=args.prefill_schedule_interval,
            async_scheduling=inputs.async_scheduling,
            max_loras=max_loras if args.enable_lora else 0,
            vllm_strict=args.vllm_strict,
        )
    except ValueError as error:
        name, _, rest = str(error).partition(":")
        raise UserError(f"--{name.replace('_', '-')}:{rest}") from None


def step_time_model(args: argparse.Namespace, sizing: SizingResult) -> StepTimeModel:
    """The step-time model that ``--step-time`` names. UserError: an unknown one, or a bad file."""
    name = args.step_time
    if name == "zero":
        return LinearStepTime({})
    if name == "roofline":
        inputs = sizing.inputs
        if inputs.gpu is None:
            raise UserError("--step-time roofline: needs --gpu")
        return RooflineStepTime(
            inputs.shape,
            inputs.gpu,
            kv_cache_dtype=inputs.kv_cache_dtype,
            tensor_parallel_size=inputs.tensor_parallel_size,
        )
    return load_step_time(LINEAR_EXAMPLE if name == "linear" else Path(name))


def load_step_time(path: Path) -> StepTimeModel:
    """A linear step-time model from a YAML file. UserError names the file and what is wrong."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"--step-time: expected roofline, zero, linear or a YAML file; {path}: {reason}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(data, dict) or data.get("model") != "linear":
        raise UserError(f"{path}: expected `model: linear` and its coefficients")
    coefficients = {key: value for key, value in data.items() if key != "model"}
    try:
        return LinearStepTime(coefficients)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
