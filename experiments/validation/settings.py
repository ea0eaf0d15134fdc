"""What ``kvtwin validate`` was asked for, resolved: a workload with token ids, an engine, and a model on a device."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Executor
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.device import device_errors, load_device_model
from kvtwin.experiments.options.engine import engine_config
from kvtwin.experiments.options.load import Load, shape_load
from kvtwin.experiments.options.output import OutputSettings, output_settings
from kvtwin.experiments.options.sizing import GPU_MEMORY_UTILIZATION, SizingResult, resolve_inputs, resolve_sizing
from kvtwin.experiments.options.trace import open_trace
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.formats.demo import DemoReader
from kvtwin.workloads.length_scale import scale_lengths
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.token_ids import with_token_ids
from kvtwin.workloads.workload import Workload

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel

CPU_CACHE_BYTES = 256 << 20
CPU_BATCHED_TOKENS = 1024
CPU_SEQS = 64
"""A laptop's stand-ins for the defaults that vLLM derives from a GPU."""

_MEASURED = "the device's memory is measured; --kv-cache-memory-bytes says how much the cache has"

ELSEWHERE = {
    "gpu": (None, "the device is --device"),
    "tensor_parallel_size": (1, "one device computes here"),
    "pipeline_parallel_size": (1, "one device computes here"),
    "kv_cache_dtype": ("auto", "the cache is of the model's dtype here"),
    "speculative_config": (None, "drafts are not computed here"),
    "ignore_eos": (True, "outputs are as long as the workload says"),
    "weight_bytes": (None, _MEASURED),
    "activation_peak_bytes": (None, _MEASURED),
    "cuda_graph_bytes": (None, _MEASURED),
    "other_bytes": (None, _MEASURED),
}
"""Options of a replay that a real run cannot follow, by name: the only value that they may have, and why."""


@dataclass(frozen=True)
class Setting:
    """Everything that both runs have in common."""

    args: argparse.Namespace
    sizing: SizingResult
    config: EngineConfig
    output: OutputSettings
    workload: Workload
    load: Load
    records: list[RequestRecord]
    """What is sent, with token ids."""
    model: DeviceModel

    def simulation(self, executor: Executor[Any], on_progress: Callable[[int], None] | None = None) -> ServerSimulation:
        """A server with ``executor`` behind it."""
        return ServerSimulation(
            self.config,
            executor,
            max_concurrency=self.load.max_concurrency,
            check=self.args.check,
            on_progress=on_progress,
            num_warm_up_requests=self.args.warmup_requests,
        )


def resolve(args: argparse.Namespace) -> Setting:
    """The setting of the command line, with the model on its device. UserError: a setting that cannot be."""
    for name, (value, why) in ELSEWHERE.items():
        if getattr(args, name) != value:
            raise UserError(f"--{name.replace('_', '-')}: {why}")
    if args.device == "cpu" and args.dtype not in ("auto", "float32", "float"):
        raise UserError(f"--dtype {args.dtype}: a CPU computes in float32")
    if args.device == "cpu" and args.gpu_memory_utilization != GPU_MEMORY_UTILIZATION:
        raise UserError("--gpu-memory-utilization: --kv-cache-memory-bytes says how much a CPU's cache has")
    output = output_settings(args)
    workload = open_trace(args)
    load = shape_load(args, workload)
    if args.warmup_requests >= load.num_requests:
        raise UserError(f"--warmup-requests: nothing is left to count of {load.num_requests:,} requests")
    model = load_device_model(args, args.dtype)
    sizing = resolve_sizing(_with_defaults(args, model))
    config = engine_config(args, sizing, None)
    with device_errors():
        from kvtwin.gpu.executor import check_executable

        check_executable(config)
    records = _records(args, workload, load, sizing.inputs.shape.vocab_size)
    return Setting(args, sizing, config, output, workload, load, records, model)


def _with_defaults(args: argparse.Namespace, model: DeviceModel) -> argparse.Namespace:
    """The options with what a device's memory and speed decide, where the user does not say."""
    filled = argparse.Namespace(**vars(args))
    filled.dtype = str(model.dtype).removeprefix("torch.")
    if args.device == "cpu":
        filled.max_num_batched_tokens = args.max_num_batched_tokens or max(CPU_BATCHED_TOKENS, args.max_num_seqs or 0)
        filled.max_num_seqs = args.max_num_seqs or min(CPU_SEQS, filled.max_num_batched_tokens)
    if args.num_gpu_blocks_override is None and args.kv_cache_memory_bytes is None:
        filled.kv_cache_memory_bytes = CPU_CACHE_BYTES if args.device == "cpu" else _free_bytes(filled, model)
    if args.max_model_len is None and args.num_gpu_blocks_override is None:
        filled.max_model_len = -1  # the longest that fits
    return filled


def _free_bytes(args: argparse.Namespace, model: DeviceModel) -> int:
    """Memory that a GPU has for the cache: what the largest step leaves, which is run to see."""
    from kvtwin.gpu.memory_profile import measured_budget

    inputs = resolve_inputs(argparse.Namespace(**vars(args) | {"num_gpu_blocks_override": 1}))
    return measured_budget(
        model.decoder,
        inputs.shape,
        utilization=args.gpu_memory_utilization,
        max_num_batched_tokens=inputs.max_num_batched_tokens,
        max_num_seqs=inputs.max_num_seqs,
        block_size=args.block_size,
    ).available_bytes


def _records(args: argparse.Namespace, workload: Workload, load: Load, vocabulary_size: int) -> list[RequestRecord]:
    """The ids of the bundled workload are made up, so they are made up anew for the model's vocabulary."""
    records = iter(load)
    if args.length_scale != 1 or isinstance(workload.reader, DemoReader):
        records = scale_lengths(records, args.length_scale)
    return list(with_token_ids(records, vocabulary_size, args.seed, folds=args.weights is None))
