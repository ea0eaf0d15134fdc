"""The options that decide the size of the KV cache, shared by ``size`` and ``replay``, with vLLM's names."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace

from kvtwin.engine.sizing.cache_plan import CachePlan, plan_cache
from kvtwin.engine.sizing.group_planning import CacheLayer, SizingError
from kvtwin.engine.sizing.layer_spec import DTYPE_BYTES, KV_CACHE_DTYPES
from kvtwin.engine.sizing.memory_budget import (
    GivenBytes,
    MemoryBudget,
    default_max_num_batched_tokens,
    default_max_num_seqs,
    memory_budget,
)
from kvtwin.engine.sizing.model_cache import cache_layers
from kvtwin.engine.sizing.model_shape import ModelConfigError, ModelShape, WeightFormat
from kvtwin.experiments.catalogue.catalogue import load_gpu, load_model
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.experiments.options.refused import NOT_MODELLED, refuse_flags
from kvtwin.sim.gpu_spec import GpuSpec

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")}
_UNITS |= {f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")}
_MOST_BYTES = 1 << 50
GPU_MEMORY_UTILIZATION = 0.92
"""vLLM's default."""

_DTYPES = ("auto", *DTYPE_BYTES, "half", "float")
_STATE_DTYPES = ("auto", *DTYPE_BYTES)


def parse_bytes(text: str) -> int:
    """A number of bytes such as 1073741824, 10GiB or 2.5GB. ArgumentTypeError: anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: use bytes or a unit such as MiB, GiB, GB")
    num_bytes = float(match[1]) * _UNITS[match[2]]
    if num_bytes > _MOST_BYTES:
        raise argparse.ArgumentTypeError(f"expected at most {_MOST_BYTES >> 40} TiB, got {text[:40]!r}")
    return round(num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingInputs:
    """The resolved options: what a server would know before it plans its cache.

    ``budgets`` has one entry per pipeline rank and is empty where memory is given verbatim or blocks are.
    """

    shape: ModelShape
    gpu: GpuSpec | None
    budgets: tuple[MemoryBudget, ...]
    rank_layers: tuple[tuple[CacheLayer, ...], ...]
    available_bytes: tuple[int, ...]
    block_size: int
    kv_cache_dtype: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_model_len: int
    auto_fit_max_model_len: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    async_scheduling: bool
    enable_prefix_caching: bool
    num_gpu_blocks_override: int | None
    disable_hybrid_kv_cache_manager: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SizingResult:
    """A planned cache with the inputs that led to it.

    ``blocks_interval`` is the least and most blocks if every estimate errs in one direction, or None where
    nothing was estimated.
    """

    inputs: SizingInputs
    plan: CachePlan
    blocks_interval: tuple[int, int] | None


def add_sizing_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options. Flags that vLLM has carry vLLM's name and default."""
    group = parser.add_argument_group("model, GPU and cache size (vLLM's flags and defaults, where it has them)")
    add, switch = group.add_argument, argparse.BooleanOptionalAction
    add("--model", metavar="NAME", help="name from `kvtwin models`, or a path to a config.json")
    add("--gpu", metavar="NAME", help="name from `kvtwin gpus`, or a path to a YAML file")
    add("--dtype", default="auto", choices=_DTYPES, help="of weights and activations; auto: the checkpoint's")
    add("--kv-cache-dtype", default="auto", choices=KV_CACHE_DTYPES, help="of the cache; auto: as --dtype")
    add("--mamba-cache-dtype", default="auto", choices=_STATE_DTYPES, help="of states; auto: as --dtype")
    add(
        "--mamba-ssm-cache-dtype",
        default="auto",
        choices=_STATE_DTYPES,
        help="of states of recurrences; auto: the model's config.json, or as --mamba-cache-dtype",
    )
    add("--block-size", type=Whole(), default=16, metavar="TOKENS", help="tokens per block")
    add(
        "--gpu-memory-utilization",
        type=Number(0, 1, above=True),
        default=GPU_MEMORY_UTILIZATION,
        metavar="SHARE",
        help="share of the GPU's total memory that the server may use",
    )
    add("--tensor-parallel-size", "-tp", type=Whole(), default=1, metavar="GPUS", help="GPUs that share each layer")
    add("--pipeline-parallel-size", "-pp", type=Whole(), default=1, metavar="STAGES", help="stages of layers")
    add(
        "--max-model-len",
        type=Whole(-1),
        metavar="TOKENS",
        help="longest request (else the model's longest); -1: the longest that fits",
    )
    add("--max-num-batched-tokens", type=Whole(), metavar="TOKENS", help="token budget of a step (else by the GPU)")
    add("--max-num-seqs", type=Whole(), metavar="SEQS", help="requests per step (else by the GPU)")
    add("--num-gpu-blocks-override", type=Whole(), metavar="BLOCKS", help="use this many blocks, whatever fits")
    add("--kv-cache-memory-bytes", type=parse_bytes, metavar="BYTES", help="memory of the cache per GPU, such as 10GiB")
    add("--disable-hybrid-kv-cache-manager", action=switch, default=False, help="treat windows as full attention")
    add("--async-scheduling", action=switch, default=True, help="schedule a step while the one before runs")
    add("--enable-prefix-caching", action=switch, help="reuse the blocks of equal prefixes (default: on)")
    for flag, what in (
        ("--weight-bytes", "weights, instead of a count"),
        ("--activation-peak-bytes", "peak of activations, instead of an estimate"),
        ("--cuda-graph-bytes", "CUDA graphs, instead of an estimate"),
        ("--other-bytes", "memory outside torch, instead of an estimate"),
    ):
        add(flag, type=parse_bytes, metavar="BYTES", help=f"measured {what}; per GPU")
    refuse_flags(parser, NOT_MODELLED)


def resolve_sizing(args: argparse.Namespace) -> SizingResult:
    """The planned cache. UserError: a bad option, or vLLM's message where the server would not start."""
    inputs = resolve_inputs(args)
    try:
        return plan_sizing(inputs)
    except SizingError as error:
        raise UserError(str(error)) from None


def resolve_inputs(args: argparse.Namespace) -> SizingInputs:
    """The options with defaults filled in. UserError: missing, contradictory or out of range."""
    if not args.model:
        raise UserError("--model is needed: a name from `kvtwin models` or a path to a config.json")
    if args.max_model_len == 0:
        raise UserError("--max-model-len: expected at least 1, or -1 for the longest that fits, got 0")
    shape = _with_dtype(load_model(args.model), args.dtype)
    shape = _with_state_dtypes(shape, args.mamba_cache_dtype, args.mamba_ssm_cache_dtype)
    gpu = load_gpu(args.gpu) if args.gpu else None
    notes = list(shape.notes)
    if args.block_size % 16:
        notes.append(f"block size {args.block_size}: simulation only; vLLM's GPU kernels need multiples of 16")
    if any(layer.spec.is_latent for layer in shape.layers) and args.block_size % 64:
        notes.append("MLA kernels of vLLM on GPUs want blocks of 64 tokens or a multiple")
    batched_tokens, num_seqs = _batch_limits(args, gpu, notes)
    max_model_len = shape.max_position_tokens if args.max_model_len in (None, -1) else args.max_model_len
    if max_model_len > shape.max_position_tokens:
        raise UserError(f"--max-model-len {max_model_len} is more than the model's {shape.max_position_tokens} tokens")
    try:
        rank_layers = cache_layers(
            shape,
            block_size=args.block_size,
            kv_cache_dtype=args.kv_cache_dtype,
            tensor_parallel_size=args.tensor_parallel_size,
            pipeline_parallel_size=args.pipeline_parallel_size,
        )
        budgets = _budgets(args, shape, gpu, batched_tokens, num_seqs)
    except ModelConfigError as error:
        raise UserError(f"{error} (--weight-bytes)") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    if budgets:
        available_bytes = tuple(budget.available_bytes for budget in budgets)
    else:
        available_bytes = (args.kv_cache_memory_bytes or 0,) * args.pipeline_parallel_size
    return SizingInputs(
        shape=shape,
        gpu=gpu,
        budgets=budgets,
        rank_layers=tuple(tuple(layers) for layers in rank_layers),
        available_bytes=available_bytes,
        block_size=args.block_size,
        kv_cache_dtype=args.kv_cache_dtype,
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        max_model_len=max_model_len,
        auto_fit_max_model_len=args.max_model_len == -1,
        max_num_batched_tokens=batched_tokens,
        max_num_seqs=num_seqs,
        async_scheduling=args.async_scheduling,
        enable_prefix_caching=args.enable_prefix_caching is not False,
        num_gpu_blocks_override=args.num_gpu_blocks_override,
        disable_hybrid_kv_cache_manager=args.disable_hybrid_kv_cache_manager,
        notes=tuple(notes),
    )


def plan_sizing(inputs: SizingInputs) -> SizingResult:
    """Plan the cache. SizingError, with vLLM's message: the server would not start."""
    batches = inputs.pipeline_parallel_size + inputs.async_scheduling  # steps under way at once
    plan = plan_cache(
        inputs.rank_layers,
        inputs.available_bytes,
        max_model_len=inputs.max_model_len,
        in_flight_tokens=inputs.max_num_batched_tokens * batches,
        auto_fit_max_model_len=inputs.auto_fit_max_model_len,
        num_gpu_blocks_override=inputs.num_gpu_blocks_override,
        disable_hybrid_kv_cache_manager=inputs.disable_hybrid_kv_cache_manager,
        mamba_blocks=2 if inputs.enable_prefix_caching else 1,
    )
    interval = None
    if inputs.budgets and inputs.num_gpu_blocks_override is None:
        pairs = list(zip(inputs.budgets, plan.block_bytes, strict=True))
        low, high = (min(b.available_interval[side] // size for b, size in pairs) for side in (0, 1))
        interval = (max(0, low), high) if low != high else None
    return SizingResult(inputs, plan, interval)


def _with_dtype(shape: ModelShape, dtype: str) -> ModelShape:
    if dtype == "auto":
        return shape
    name = {"half": "float16", "float": "float32"}.get(dtype, dtype)
    size = float(DTYPE_BYTES[name])
    fmt = shape.weight_format if shape.quantization else WeightFormat(name, size, size, size)
    return replace(shape, dtype=name, weight_format=fmt)


def _with_state_dtypes(shape: ModelShape, conv_dtype: str, ssm_dtype: str) -> ModelShape:
    changes = {"conv_dtype": conv_dtype, "ssm_dtype": ssm_dtype}
    changes = {name: dtype for name, dtype in changes.items() if dtype != "auto"}
    if not changes:
        return shape
    if not any(layer.spec.kind == "mamba" for layer in shape.layers):
        flag = "--mamba-cache-dtype" if "conv_dtype" in changes else "--mamba-ssm-cache-dtype"
        raise UserError(f"{flag}: {shape.name} has no state-space layers")
    layers = [replace(layer, spec=replace(layer.spec, **changes)) for layer in shape.layers]
    return replace(shape, layers=tuple(layers))


def _batch_limits(args: argparse.Namespace, gpu: GpuSpec | None, notes: list[str]) -> tuple[int, int]:
    memory_bytes, name = (gpu.memory_bytes, gpu.name) if gpu else (80 << 30, "")
    if gpu is None and (args.max_num_batched_tokens is None or args.max_num_seqs is None):
        notes.append("without --gpu, batch limits default to vLLM's for GPUs of 70 to 160 GiB")
    tokens = args.max_num_batched_tokens or default_max_num_batched_tokens(memory_bytes, name)
    num_seqs = args.max_num_seqs or default_max_num_seqs(memory_bytes, name, tokens)
    if tokens < num_seqs:
        raise UserError(f"--max-num-batched-tokens: expected at least max_num_seqs ({num_seqs}), got {tokens}")
    return tokens, num_seqs


def _budgets(
    args: argparse.Namespace, shape: ModelShape, gpu: GpuSpec | None, batched_tokens: int, num_seqs: int
) -> tuple[MemoryBudget, ...]:
    if args.kv_cache_memory_bytes is not None:
        return ()
    if gpu is None:
        if args.num_gpu_blocks_override is not None:
            return ()
        raise UserError("--gpu is needed, or --kv-cache-memory-bytes, or --num-gpu-blocks-override")
    given = GivenBytes(
        weights=args.weight_bytes,
        activation_peak=args.activation_peak_bytes,
        cuda_graphs=args.cuda_graph_bytes,
        other=args.other_bytes,
    )
    return tuple(
        memory_budget(
            shape,
            total_bytes=gpu.memory_bytes,
            utilization=args.gpu_memory_utilization,
            max_num_batched_tokens=batched_tokens,
            max_num_seqs=num_seqs,
            tensor_parallel_size=args.tensor_parallel_size,
            pipeline_parallel_size=args.pipeline_parallel_size,
            rank=rank,
            given=given,
        )
        for rank in range(args.pipeline_parallel_size)
    )
