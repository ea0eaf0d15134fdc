"""TensorRT-LLM's cache and engine, from its options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.sizing.cache_plan import format_gib
from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.engine.sizing.memory_budget import BudgetItem, MemoryBudget
from kvtwin.engine.trtllm.profile import TrtllmProfile
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.trtllm import retention_config
from kvtwin.experiments.setup.engine import MOST_BLOCKS
from kvtwin.experiments.setup.sizing import SizingInputs, SizingResult, plan_sizing, resolve_inputs
from kvtwin.experiments.setup.speculation import Drafting
from kvtwin.sim.host_link import HostLink

_UNCOUNTED = "CUDA graphs"
"""Captured after the cache was sized, in what the fraction leaves."""


class TrtllmSetup:
    """A share of what is free after weights and activations, in blocks of ``tokens_per_block``; no null block."""

    def inputs(self, options: Any, drafting: Drafting | None) -> SizingInputs:
        """The options in the words of the planner; ``num_gpu_blocks_override`` is the blocks of ``max_tokens``."""
        if options.pipeline_parallel_size != 1:
            raise UserError("--pipeline-parallel-size: only one stage of TensorRT-LLM is modelled")
        inputs = resolve_inputs(
            replace(
                options,
                block_size=options.tokens_per_block,
                gpu_memory_utilization=1.0,
                max_model_len=options.max_seq_len,
                max_num_batched_tokens=max(options.max_num_tokens, options.max_batch_size),
                max_num_seqs=options.max_batch_size,
                async_scheduling=False,
            )
        )
        if {layer.spec.kind for layers in inputs.rank_layers for layer in layers} != {"full_attention"}:
            raise UserError(
                f"{inputs.shape.name}: --server trtllm models full attention alone: windows and states are not"
            )
        budgets = tuple(_with_rest(budget, options.free_gpu_memory_fraction) for budget in inputs.budgets)
        return replace(
            inputs,
            budgets=budgets,
            available_bytes=tuple(
                min(budget.available_bytes, options.max_gpu_total_bytes or budget.available_bytes) for budget in budgets
            ),
            num_gpu_blocks_override=options.max_tokens and -(-options.max_tokens // options.tokens_per_block),
            server=TrtllmProfile(),
        )

    def plan(self, inputs: SizingInputs) -> SizingResult:
        """The blocks that fit, at most those of ``max_tokens``. SizingError: the longest request does not fit."""
        (block_bytes,) = plan_sizing(replace(inputs, num_gpu_blocks_override=_needed(inputs) + 1)).plan.block_bytes
        fitting = max(0, inputs.available_bytes[0]) // block_bytes
        most = inputs.num_gpu_blocks_override
        usable = fitting if most is None else min(fitting, most)
        if usable < _needed(inputs):
            raise SizingError(
                f"--max-seq-len {inputs.max_model_len}: needs {_needed(inputs)} blocks of {inputs.block_size} tokens, "
                f"and the cache has {usable}, in {format_gib(max(0, inputs.available_bytes[0]))} GiB"
            )
        result = plan_sizing(replace(inputs, num_gpu_blocks_override=usable + 1))
        interval = None
        if most is None or fitting <= most:
            low, high = (max(0, side) // block_bytes for side in inputs.budgets[0].available_interval)
            interval = (low, high) if low != high else None
        return SizingResult(replace(inputs, num_gpu_blocks_override=None), result.plan, interval)

    def explained(self, error: SizingError, inputs: SizingInputs, options: Any, drafting: Drafting | None) -> str:
        """The error says all there is."""
        return str(error)

    def sizing(self, options: Any, drafting: Drafting | None) -> SizingResult:
        """The plan. UserError: it does not fit."""
        try:
            return self.plan(self.inputs(options, drafting))
        except SizingError as error:
            raise UserError(str(error)) from None

    def engine_config(self, options: Any, sizing: SizingResult, drafting: Drafting | None) -> EngineConfig:
        """The engine's configuration. UserError: more blocks than a replay holds, or an option that cannot be."""
        plan = sizing.plan
        if plan.num_blocks > MOST_BLOCKS:
            raise UserError(f"the cache would have {plan.num_blocks:,} blocks; a replay holds at most {MOST_BLOCKS:,}")
        if options.events:
            raise UserError("--events: only with --server vllm")
        (block_bytes,) = plan.block_bytes
        num_host_blocks = (options.host_cache_size or 0) // block_bytes
        if options.host_cache_size and not 0 < num_host_blocks <= MOST_BLOCKS:
            raise UserError(
                f"--host-cache-size: expected room for 1 to {MOST_BLOCKS:,} blocks of {block_bytes:,} bytes"
            )
        profile = TrtllmProfile(
            enable_partial_reuse=options.enable_partial_reuse,
            copy_on_partial_reuse=options.copy_on_partial_reuse,
            num_host_blocks=num_host_blocks,
            onboard_blocks=options.onboard_blocks,
            secondary_offload_min_priority=options.secondary_offload_min_priority,
            capacity_scheduler_policy=options.capacity_scheduler_policy,
            enable_prefix_aware_scheduling=options.enable_prefix_aware_scheduling,
            enable_chunked_prefill=bool(options.enable_chunked_prefill),
            context_chunking_policy=options.context_chunking_policy,
            retention=retention_config(options.kv_cache_retention_config),
        )
        return EngineConfig(
            num_blocks=plan.num_blocks,
            server=profile,
            block_size=options.tokens_per_block,
            max_model_len=plan.max_model_len,
            max_num_seqs=min(options.max_batch_size, options.max_num_tokens),
            max_num_batched_tokens=options.max_num_tokens,
            enable_prefix_caching=options.enable_block_reuse,
            enable_kv_cache_events=options.kv_events,
            async_scheduling=False,
        )

    def host_link(self, options: Any, sizing: SizingResult) -> HostLink | None:
        """The link that offloading and onboarding take time on."""
        if not options.host_cache_size or options.step_time == "zero":
            return None
        gpu = sizing.inputs.gpu
        if gpu is None:
            raise UserError("--host-cache-size: copies take time, which needs --gpu")
        return HostLink(sizing.plan.block_bytes[0], gpu.pcie_bytes_per_s)


def _needed(inputs: SizingInputs) -> int:
    """Blocks of the longest request."""
    return -(-inputs.max_model_len // inputs.block_size)


def _with_rest(budget: MemoryBudget, fraction: float) -> MemoryBudget:
    """The budget with the share of the free memory that the cache does not get, and without what comes later."""
    items = [item for item in budget.items if item.name != _UNCOUNTED]
    free, high, low = (
        budget.total_bytes - sum(sizes)
        for sizes in zip(*((item.num_bytes, item.low_bytes, item.high_bytes) for item in items), strict=True)
    )
    rest, most, least = (max(0, size - int(size * fraction)) for size in (free, high, low))
    item = BudgetItem("left free", rest, "exact", f"1 - --free-gpu-memory-fraction {fraction:g}", most, least)
    return replace(budget, items=(*items, item))
