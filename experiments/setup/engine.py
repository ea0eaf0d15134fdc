"""From the options to the engine's configuration."""

from __future__ import annotations

import os
from dataclasses import fields, replace

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.sizing.cache_plan import CachePlan
from kvtwin.engine.sizing.model_shape import ModelShape
from kvtwin.engine.sizing.state_checkpoints import checkpoint_grid
from kvtwin.engine.speculation import Speculation
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.setup.host_memory import host_blocks
from kvtwin.experiments.setup.sizing import SizingResult
from kvtwin.experiments.setup.speculation import Drafting

MOST_BLOCKS = 1 << 25
"""Blocks that a simulated pool may have: a block takes about 100 bytes of this computer's memory."""


def engine_config(options: ReplayOptions, sizing: SizingResult, speculation: Drafting | None) -> EngineConfig:
    """The engine's configuration. UserError: a setting out of range, or a model that is not modelled."""
    plan, inputs = sizing.plan, sizing.inputs
    if inputs.pipeline_parallel_size != 1:
        raise UserError(
            "--pipeline-parallel-size: a replay models only one pipeline stage; `kvtwin size` plans several"
        )
    if plan.num_blocks > MOST_BLOCKS:
        raise UserError(
            f"the cache would have {plan.num_blocks:,} blocks; a replay holds at most {MOST_BLOCKS:,} "
            "(--num-gpu-blocks-override)"
        )
    if options.max_loras is not None and not options.enable_lora:
        raise UserError("--max-loras: needs --enable-lora")
    drafting = _drafting(speculation, inputs.shape)
    num_host_blocks = host_blocks(options, sizing, MOST_BLOCKS)
    try:
        config = EngineConfig(
            num_blocks=plan.num_blocks,
            block_size=_block_size(plan),
            cache_groups=_cache_groups(sizing, options.prefix_match_unit, drafting),
            prefix_cache_retention_interval=options.prefix_cache_retention_interval,
            prefix_match_unit=options.prefix_match_unit,
            max_model_len=plan.max_model_len,
            max_num_seqs=inputs.max_num_seqs,
            max_num_active_seqs=options.max_num_active_seqs,
            max_num_batched_tokens=inputs.max_num_batched_tokens,
            max_num_scheduled_tokens=options.max_num_scheduled_tokens,
            enable_prefix_caching=inputs.enable_prefix_caching,
            prefix_caching_hash_algo=options.prefix_caching_hash_algo,
            enable_kv_cache_events=options.kv_events,
            hash_seed=os.environ.get("PYTHONHASHSEED"),
            enable_chunked_prefill=options.enable_chunked_prefill is not False,
            long_prefill_token_threshold=options.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=options.long_prefill_token_threshold_adaptive,
            scheduling_policy=options.scheduling_policy,
            watermark=options.watermark,
            scheduler_reserve_full_isl=options.scheduler_reserve_full_isl,
            prefill_schedule_interval=options.prefill_schedule_interval,
            async_scheduling=inputs.async_scheduling,
            max_loras=(options.max_loras or 1) if options.enable_lora else 0,
            speculation=drafting,
            encoder_cache_size=_encoder_cache_size(options, sizing),
            max_num_encoder_input_tokens=options.max_num_encoder_input_tokens,
            disable_chunked_mm_input=options.disable_chunked_mm_input or inputs.shape.keeps_images_whole,
            retention=options.retention,
            preemption_mode=options.preemption_mode,
            parallel_sampling=options.parallel_sampling,
            kv_cache_metrics=options.kv_cache_metrics,
            kv_cache_metrics_sample=options.kv_cache_metrics_sample,
            vllm_strict=options.vllm_strict,
            **num_host_blocks,
        )
        return with_allocator(config, options)
    except ValueError as error:
        name, _, rest = str(error).partition(":")
        where = inputs.shape.name if name == "cache_groups" else flag_of(name)
        raise UserError(f"{where}:{rest}") from None


SETTINGS = frozenset(field.name for field in fields(EngineConfig))
"""Names of the engine's settings."""

_FLAGS_OF_OTHER_NAMES = {
    "num_blocks": "--num-gpu-blocks-override",
    "num_swap_blocks": "--swap-space",
    "num_offload_blocks": "--kv-offloading-size",
    "enable_kv_cache_events": "--kv-events",
    "speculation": "--speculative-config",
}


def flag_of(setting: str) -> str:
    """The flag that decides a setting of the engine."""
    return _FLAGS_OF_OTHER_NAMES.get(setting, f"--{setting.replace('_', '-')}")


def _drafting(speculation: Drafting | None, shape: ModelShape) -> Speculation | None:
    """What drafts; the target's own modules know how many they are."""
    if speculation and speculation.speculation.method == "mtp":
        return replace(speculation.speculation, num_nextn_predict_layers=shape.num_mtp_layers)
    return speculation.speculation if speculation else None


def _encoder_cache_size(options: ReplayOptions, sizing: SizingResult) -> int:
    """As vLLM has it: room for a step's tokens, or for the largest image if that has more."""
    if options.encoder_cache_size is not None:
        return options.encoder_cache_size
    shape, batched_tokens = sizing.inputs.shape, sizing.inputs.max_num_batched_tokens
    if not shape.takes_images:
        return 0
    return max(batched_tokens, shape.vision.image_tokens) if shape.vision else batched_tokens


def _cache_groups(
    sizing: SizingResult, prefix_match_unit: int | None, speculation: Speculation | None
) -> tuple[CacheGroupSpec, ...]:
    """The plan's groups as the engine wants them: without prefix caching a request has one block of states.

    Beside it are blocks for the states behind each draft.
    """
    plan, caches_prefixes = sizing.plan, sizing.inputs.enable_prefix_caching
    num_drafts = speculation.num_speculative_tokens if speculation else 0
    return tuple(
        CacheGroupSpec(
            group.kind,
            plan.max_model_len if group.kind == "mamba" and not caches_prefixes else group.block_size,
            group.window_tokens,
            is_eagle_group=group.has_draft_layers,
            num_speculative_blocks=num_drafts if group.kind == "mamba" else 0,
            num_prefill_checkpoint_blocks=int(group.prefill_checkpoint_alignment is not None),
            prefill_checkpoint_alignment=checkpoint_grid(
                group.prefill_checkpoint_alignment, group.block_size, prefix_match_unit
            ),
        )
        for group in plan.groups
    )


def _block_size(plan: CachePlan) -> int:
    """The block size of full attention, where there is some."""
    full = [group for group in plan.groups if group.kind == "full_attention"]
    return (full or plan.groups)[0].block_size


def with_allocator(config: EngineConfig, options: ReplayOptions) -> EngineConfig:
    """The configuration of the same memory under ``--allocator``. UserError: an option that it cannot have."""
    if options.allocator == "paged":
        return config
    if [group.kind for group in config.group_specs] != ["full_attention"]:
        raise UserError(f"--allocator {options.allocator}: only for models of one cache group, of full attention")
    if options.enable_prefix_caching:
        raise UserError(f"--enable-prefix-caching: {options.allocator} shares nothing between requests")
    if options.allocator != "contiguous-max" and not options.ignore_eos:
        raise UserError(f"--allocator {options.allocator}: needs known output lengths, so it excludes --no-ignore-eos")
    return replace(
        config,
        allocator=options.allocator,
        num_blocks=(config.num_blocks - 1) * config.block_size + 1,
        block_size=1,
        cache_groups=(),
        enable_prefix_caching=False,
    )


def allocator_lines(config: EngineConfig) -> list[str]:
    """What a heading says about the allocator: nothing if it is vLLM's."""
    if config.allocator == "paged":
        return []
    return [f"memory  {config.allocator}: a range per request, of {config.num_blocks - 1:,} slots; no prefix caching"]
