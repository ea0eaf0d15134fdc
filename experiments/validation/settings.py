"""What ``kvtwin validate`` was asked for, resolved: a workload with token ids, an engine, and a model on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import Executor
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.sizing import GPU_MEMORY_UTILIZATION
from kvtwin.experiments.options.validate import ELSEWHERE, ValidateOptions
from kvtwin.experiments.setup.device import device_errors, load_device_model
from kvtwin.experiments.setup.engine import engine_config
from kvtwin.experiments.setup.load import shape_load
from kvtwin.experiments.setup.replicas import check_router, has_replicas, replica_options, share_experts
from kvtwin.experiments.setup.sizing import SizingResult, resolve_inputs, resolve_sizing
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.sim.serving import ServerSimulation
from kvtwin.workloads.formats.demo import DemoReader
from kvtwin.workloads.length_scale import scale_lengths
from kvtwin.workloads.load import Load
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.token_ids import with_token_ids
from kvtwin.workloads.workload import Workload

if TYPE_CHECKING:
    from kvtwin.gpu.device_model import DeviceModel

CPU_CACHE_BYTES = 256 << 20
CPU_BATCHED_TOKENS = 1024
CPU_SEQS = 64
"""A laptop's stand-ins for the defaults that vLLM derives from a GPU."""


@dataclass(frozen=True)
class ServerSetting:
    """One server: its own options, and what follows from them and from the device."""

    options: ValidateOptions
    sizing: SizingResult
    config: EngineConfig

    def simulation(self, executor: Executor[Any], **others: Any) -> ServerSimulation:
        """The server on ``executor``; ``others`` are those of :class:`ServerSimulation`."""
        return ServerSimulation(
            self.config,
            executor,
            check=self.options.check,
            num_warm_up_requests=self.options.warmup_requests,
            **others,
        )


@dataclass(frozen=True)
class Setting:
    """Everything that both runs have in common."""

    options: ValidateOptions
    servers: tuple[ServerSetting, ...]
    """One, or replicas behind the router of ``options``."""
    workload: Workload
    load: Load
    records: list[RequestRecord]
    """What is sent, with token ids."""
    model: DeviceModel


def resolve(options: ValidateOptions) -> Setting:
    """The setting of the command line, with the model on its device. UserError: a setting that cannot be."""
    _check(options)
    alone = _replicas(options) if has_replicas(options) else [options]
    if options.device == "cpu" and options.dtype not in ("auto", "float32", "float"):
        raise UserError(f"--dtype {options.dtype}: a CPU computes in float32")
    if options.device == "cpu" and options.gpu_memory_utilization != GPU_MEMORY_UTILIZATION:
        raise UserError("--gpu-memory-utilization: use --kv-cache-memory-bytes for the cache of a CPU")
    workload = open_trace(options.trace, options)
    load = shape_load(options, workload)
    if options.warmup_requests >= load.num_requests:
        raise UserError(f"--warmup-requests: leaves nothing to count of {load.num_requests:,} requests")
    model = load_device_model(options, options.model or "", options.seed, options.dtype)
    made = {each: _server(each, model, len(alone)) for each in dict.fromkeys(alone)}
    servers = tuple(made[each] for each in alone)
    records = _records(options, workload, load, servers[0].sizing.inputs.shape.vocab_size)
    return Setting(options, servers, workload, load, records, model)


def _check(options: ValidateOptions) -> None:
    """UserError: an option that a run on a device cannot follow."""
    for name, (value, why) in ELSEWHERE.items():
        if getattr(options, name) != value:
            raise UserError(f"--{name.replace('_', '-')}: {why}")
    check_router(options)


def _replicas(options: ValidateOptions) -> list[ValidateOptions]:
    """The options of each replica, alone. UserError: they cannot be."""
    if share_experts(options):
        raise UserError("--data-parallel-size: ranks that share experts step together; validation does not do that")
    replicas = replica_options(options)
    for number, each in enumerate(replicas):
        try:
            _check(each)
            for name in ("model", "dtype"):
                if getattr(each, name) != getattr(options, name):
                    raise UserError(f"--{name}: all replicas compute with one model")
        except UserError as error:
            raise UserError(f"{options.replicas}: replica {number}: {error}") from None
    return replicas


def _server(options: ValidateOptions, model: DeviceModel, num_servers: int) -> ServerSetting:
    """A server that has its part of the device's memory."""
    sizing = resolve_sizing(_with_defaults(options, model, num_servers))
    config = engine_config(options, sizing, None)
    with device_errors():
        from kvtwin.gpu.executor import check_executable

        check_executable(config)
    return ServerSetting(options, sizing, config)


def _with_defaults(options: ValidateOptions, model: DeviceModel, num_servers: int) -> ValidateOptions:
    """The options with what a device's memory and speed decide, where the user does not say."""
    filled = replace(options, dtype=str(model.dtype).removeprefix("torch."))
    if options.device == "cpu":
        tokens = options.max_num_batched_tokens or max(CPU_BATCHED_TOKENS, options.max_num_seqs or 0)
        filled = replace(
            filled, max_num_batched_tokens=tokens, max_num_seqs=options.max_num_seqs or min(CPU_SEQS, tokens)
        )
    if options.num_gpu_blocks_override is None and options.kv_cache_memory_bytes is None:
        num_bytes = CPU_CACHE_BYTES if options.device == "cpu" else _free_bytes(filled, model) // num_servers
        filled = replace(filled, kv_cache_memory_bytes=num_bytes)
    if options.max_model_len is None and options.num_gpu_blocks_override is None:
        filled = replace(filled, max_model_len=-1)  # the longest that fits
    return filled


def _free_bytes(options: ValidateOptions, model: DeviceModel) -> int:
    """Memory that a GPU has for the cache: what the largest step leaves, which is run to see."""
    from kvtwin.gpu.memory_profile import measured_budget

    inputs = resolve_inputs(replace(options, num_gpu_blocks_override=1))
    return measured_budget(
        model.decoder,
        inputs.shape,
        utilization=options.gpu_memory_utilization,
        max_num_batched_tokens=inputs.max_num_batched_tokens,
        max_num_seqs=inputs.max_num_seqs,
        block_size=options.block_size,
    ).available_bytes


def _records(options: ValidateOptions, workload: Workload, load: Load, vocabulary_size: int) -> list[RequestRecord]:
    """The ids of the bundled workload are made up, so they are made up anew for the model's vocabulary."""
    records = iter(load)
    if options.length_scale != 1 or isinstance(workload.reader, DemoReader):
        records = scale_lengths(records, options.length_scale)
    return list(with_token_ids(records, vocabulary_size, options.seed, folds=options.weights is None))
