"""From the options to a planned cache: what a server would know before it plans its cache, and the plan."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.server_identity import VLLM, ServerIdentity
from kvtwin.engine.sizing.cache_plan import CachePlan, check_state_blocks, plan_cache
from kvtwin.engine.sizing.drafter import Drafter
from kvtwin.engine.sizing.group_planning import CacheLayer, SizingError
from kvtwin.engine.sizing.hf_quantization import same_method
from kvtwin.engine.sizing.memory_budget import (
    GivenBytes,
    MemoryBudget,
    Server,
    default_max_num_batched_tokens,
    default_max_num_seqs,
    memory_budget,
)
from kvtwin.engine.sizing.model_cache import cache_layers
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.engine.sizing.state_checkpoints import with_checkpoints
from kvtwin.experiments.catalogue.gpus import load_gpu
from kvtwin.experiments.catalogue.models import load_model
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.setup.drafter import drafter_of
from kvtwin.experiments.setup.dtypes import kv_cache_dtype as resolved_kv_cache_dtype
from kvtwin.experiments.setup.dtypes import with_dtype, with_state_dtypes
from kvtwin.experiments.setup.speculation import Drafting
from kvtwin.sim.gpu_spec import GpuSpec


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
    data_parallel_size: int
    """Ranks that share the experts; 1 where there are none."""
    enable_expert_parallel: bool
    max_model_len: int
    auto_fit_max_model_len: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    num_drafts: int
    enforce_eager: bool
    async_scheduling: bool
    enable_prefix_caching: bool
    num_gpu_blocks_override: int | None
    disable_hybrid_kv_cache_manager: bool
    notes: tuple[str, ...]
    server: ServerIdentity = VLLM


@dataclass(frozen=True, slots=True)
class SizingResult:
    """A planned cache with the inputs that led to it.

    ``blocks_interval`` is the least and most blocks if every estimate errs in one direction, or None where
    nothing was estimated.
    """

    inputs: SizingInputs
    plan: CachePlan
    blocks_interval: tuple[int, int] | None


def resolve_sizing(options: SizingOptions, drafting: Drafting | None = None) -> SizingResult:
    """The planned cache. UserError: a bad option, or vLLM's message where the server would not start."""
    inputs = resolve_inputs(options, drafting)
    try:
        return plan_sizing(inputs)
    except SizingError as error:
        from kvtwin.experiments.setup.memory_advice import explained  # which plans again, with other options

        raise UserError(explained(error, inputs, options, drafting)) from None


def resolve_inputs(options: SizingOptions, drafting: Drafting | None = None) -> SizingInputs:
    """The options with defaults filled in. UserError: missing, contradictory or out of range."""
    if not options.model:
        raise UserError("--model is needed: a name from `kvtwin models` or a path to a config.json")
    if options.max_model_len == 0:
        raise UserError("--max-model-len: expected at least 1, or -1 for the longest that fits, got 0")
    if options.enforce_eager and options.cuda_graph_bytes:
        raise UserError("--cuda-graph-bytes: there are no CUDA graphs with --enforce-eager")
    shape = with_dtype(load_model(options.model), options.dtype)
    shape = with_state_dtypes(shape, options.mamba_cache_dtype, options.mamba_ssm_cache_dtype)
    gpu = load_gpu(options.gpu) if options.gpu else None
    caches_prefixes = options.enable_prefix_caching
    if caches_prefixes is None:
        caches_prefixes = shape.has_attention  # vLLM's default: off for models of states alone
    shape = with_checkpoints(
        shape,
        caches_prefixes=caches_prefixes,
        compute_capability=gpu.compute_capability if gpu else 0.0,
    )
    drafter, remark = drafter_of(drafting, shape)
    num_drafts = drafting.speculation.num_speculative_tokens if drafting else 0
    notes = [*shape.notes, *([f"drafter: {remark}"] if remark else [])]
    _check_quantization(shape, options.quantization)
    if options.enable_expert_parallel and not shape.has_experts:
        raise UserError(f"--enable-expert-parallel: {shape.name} has no experts")
    kv_cache_dtype = resolved_kv_cache_dtype(shape, options.kv_cache_dtype, gpu, notes)
    if options.block_size % 16:
        notes.append(f"block size {options.block_size}: simulation only; vLLM's GPU kernels need multiples of 16")
    elif options.block_size % shape.kernel_block_tokens and not shape.has_states:  # beside states, blocks grow
        notes.append(f"vLLM's kernels for this model need blocks of a multiple of {shape.kernel_block_tokens} tokens")
    batched_tokens, num_seqs = _batch_limits(options, gpu, notes)
    longest = shape.default_max_model_len or shape.max_position_tokens
    max_model_len = longest if options.max_model_len in (None, -1) else options.max_model_len
    if max_model_len > shape.max_position_tokens:
        raise UserError(f"--max-model-len {max_model_len} is more than the model's {shape.max_position_tokens} tokens")
    try:
        rank_layers = cache_layers(
            shape,
            block_size=options.block_size,
            kv_cache_dtype=kv_cache_dtype,
            tensor_parallel_size=options.tensor_parallel_size,
            pipeline_parallel_size=options.pipeline_parallel_size,
            drafter=drafter,
            num_drafts=num_drafts,
        )
        budgets = _budgets(options, shape, drafter, gpu, batched_tokens, num_seqs, num_drafts)
    except ValueError as error:
        raise UserError(str(error)) from None
    if budgets:
        available_bytes = tuple(budget.available_bytes for budget in budgets)
    else:
        available_bytes = (options.kv_cache_memory_bytes or 0,) * options.pipeline_parallel_size
    return SizingInputs(
        shape=shape,
        gpu=gpu,
        budgets=budgets,
        rank_layers=tuple(tuple(layers) for layers in rank_layers),
        available_bytes=available_bytes,
        block_size=options.block_size,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        data_parallel_size=_ranks_sharing_experts(options, shape),
        enable_expert_parallel=options.enable_expert_parallel,
        max_model_len=max_model_len,
        auto_fit_max_model_len=options.max_model_len == -1,
        max_num_batched_tokens=batched_tokens,
        max_num_seqs=num_seqs,
        num_drafts=num_drafts,
        enforce_eager=options.enforce_eager,
        async_scheduling=options.async_scheduling,
        enable_prefix_caching=caches_prefixes,
        num_gpu_blocks_override=options.num_gpu_blocks_override,
        disable_hybrid_kv_cache_manager=options.disable_hybrid_kv_cache_manager,
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
        mamba_blocks=(2 if inputs.enable_prefix_caching else 1) + inputs.num_drafts,
    )
    if not inputs.enforce_eager:
        check_state_blocks(plan, inputs.max_num_seqs)
    interval = None
    if inputs.budgets and inputs.num_gpu_blocks_override is None:
        pairs = list(zip(inputs.budgets, plan.block_bytes, strict=True))
        low, high = (min(b.available_interval[side] // size for b, size in pairs) for side in (0, 1))
        interval = (max(0, low), high) if low != high else None
    return SizingResult(inputs, plan, interval)


def _check_quantization(shape: ModelShape, quantization: str | None) -> None:
    """UserError: a --quantization that is not the checkpoint's."""
    if quantization is None:
        return
    if shape.quantization is None:
        raise UserError(
            f"--quantization {quantization}: the checkpoint of {shape.name} is not quantised; vLLM would quantise it "
            "while loading, which is not modelled (give the size of the weights by --weight-bytes instead)"
        )
    if not same_method(quantization, shape.quantization):
        raise UserError(
            f"Quantization method specified in the model config ({shape.quantization}) does not match the quantization "
            f"method specified in the `quantization` argument ({quantization})."
        )


def _ranks_sharing_experts(options: SizingOptions, shape: ModelShape) -> int:
    return options.data_parallel_size if shape.has_experts else 1


def _batch_limits(options: SizingOptions, gpu: GpuSpec | None, notes: list[str]) -> tuple[int, int]:
    memory_bytes, name = (gpu.memory_bytes, gpu.name) if gpu else (80 << 30, "")
    if gpu is None and (options.max_num_batched_tokens is None or options.max_num_seqs is None):
        notes.append("without --gpu, batch limits default to vLLM's for GPUs of 70 to 160 GiB")
    tokens = options.max_num_batched_tokens or default_max_num_batched_tokens(memory_bytes, name)
    num_seqs = options.max_num_seqs or default_max_num_seqs(memory_bytes, name, tokens)
    if tokens < num_seqs:
        raise UserError(f"--max-num-batched-tokens: expected at least max_num_seqs ({num_seqs}), got {tokens}")
    return tokens, num_seqs


def _budgets(
    options: SizingOptions,
    shape: ModelShape,
    drafter: Drafter | None,
    gpu: GpuSpec | None,
    batched_tokens: int,
    num_seqs: int,
    num_drafts: int,
) -> tuple[MemoryBudget, ...]:
    if options.kv_cache_memory_bytes is not None:
        return ()
    if gpu is None:
        if options.num_gpu_blocks_override is not None:
            return ()
        raise UserError("--gpu is needed, or --kv-cache-memory-bytes, or --num-gpu-blocks-override")
    given = GivenBytes(
        weights=options.weight_bytes,
        activation_peak=options.activation_peak_bytes,
        cuda_graphs=options.cuda_graph_bytes,
        other=options.other_bytes,
    )
    server = Server(
        max_num_batched_tokens=batched_tokens,
        max_num_seqs=num_seqs,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=options.pipeline_parallel_size,
        data_parallel_size=_ranks_sharing_experts(options, shape),
        enable_expert_parallel=options.enable_expert_parallel,
        num_drafts=num_drafts,
        enforce_eager=options.enforce_eager,
        gpu_name=gpu.name,
    )
    return tuple(
        memory_budget(
            shape,
            server,
            total_bytes=gpu.memory_bytes,
            utilization=options.gpu_memory_utilization,
            rank=rank,
            drafter=drafter,
            given=given,
        )
        for rank in range(options.pipeline_parallel_size)
    )
