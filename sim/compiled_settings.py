"""Whether the compiled loop can decide a run, and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.compiled.loop import state as at
from kvtwin.engine.compiled.loop.memory import LoopMemory
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.scheduler import Scheduler
from kvtwin.sim.step_costs import StepCosts

_MOST_SEATS = 1 << 16
_MOST_TOKENS = 1 << 20


_DECIDED = {
    *("num_blocks", "block_size", "cache_groups", "prefix_match_unit", "prefix_cache_retention_interval"),
    *("max_model_len", "max_num_seqs", "max_num_active_seqs", "max_num_batched_tokens", "max_num_scheduled_tokens"),
    *("enable_prefix_caching", "prefix_caching_hash_algo", "hash_seed", "enable_chunked_prefill"),
    *("long_prefill_token_threshold", "long_prefill_token_threshold_adaptive", "scheduling_policy", "watermark"),
    *("scheduler_reserve_full_isl", "prefill_schedule_interval", "async_scheduling", "max_loras", "vllm_strict"),
    *("kv_cache_metrics_sample", "max_num_encoder_input_tokens", "disable_chunked_mm_input"),
}
"""Settings of which the loop knows every value, as far as ``reasons_against`` does not look closer; those of the last
line mean nothing without another one. Of any other it knows the default only."""


def reasons_against(config: EngineConfig) -> Iterator[str]:
    """What of the engine's settings only the plain scheduler knows."""
    for field in fields(config):
        if field.name not in _DECIDED and getattr(config, field.name) != field.default:
            yield field.name
    specs = config.group_specs
    if len(specs) > 1 or specs[0].kind != "full_attention":
        yield "cache groups other than one of full attention"
    elif config.hash_block_size != specs[0].block_size:
        yield "block hashes that cover a part of a block"
    if config.max_running_requests > _MOST_SEATS or config.token_budget > _MOST_TOKENS:
        yield "very large steps"


def make_memory(scheduler: Scheduler, costs: StepCosts) -> LoopMemory:
    """The loop's memory for a scheduler that has not begun."""
    config, pool = scheduler.config, scheduler.kv_cache.pool
    assert isinstance(pool, BlockPool)
    memory = LoopMemory(pool, config.max_running_requests, costs.numbers)
    settings, numbers = memory["settings"], memory["numbers"]
    for place, value in {
        at.BLOCK_SIZE: config.group_specs[0].block_size,
        at.MAX_MODEL_LEN: config.max_model_len,
        at.MAX_RUNNING: config.max_running_requests,
        at.TOKEN_BUDGET: config.token_budget,
        at.MAX_BATCHED_TOKENS: config.max_num_batched_tokens,
        at.WATERMARK_BLOCKS: config.watermark_blocks,
        at.MAX_STEPS_IN_FLIGHT: config.max_steps_in_flight,
        at.THRESHOLD: config.long_prefill_token_threshold,
        at.PREFILL_INTERVAL: config.prefill_schedule_interval,
        at.MAX_LORAS: config.max_loras,
        at.IS_ASYNC: config.async_scheduling,
        at.IS_STRICT: config.vllm_strict,
        at.IS_ADAPTIVE: config.long_prefill_token_threshold_adaptive,
        at.BY_PRIORITY: config.scheduling_policy == "priority",
        at.CACHES: config.enable_prefix_caching,
        at.CHUNKS: config.enable_chunked_prefill,
        at.RESERVES_ALL: config.scheduler_reserve_full_isl,
        at.STEP_TIME: costs.form,
        at.NUM_WINDOWS: costs.num_windows,
        at.SERVER: costs.server,
        at.VARIED: costs.varied,
    }.items():
        settings[place] = value
    numbers[at.FIRST_WAITING] = numbers[at.LAST_WAITING] = at.NOBODY
    numbers[at.HELD_NS] = at.NEVER
    return memory
