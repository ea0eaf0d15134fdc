"""The options of vLLM's scheduler and prefix cache, and the engine's configuration that they make."""

from __future__ import annotations

import argparse
import os

from kvtwin.engine.block_hashes import HASH_ALGORITHMS
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import PARALLEL_SAMPLING, SCHEDULING_POLICIES, EngineConfig
from kvtwin.engine.sizing.cache_plan import CachePlan
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.allocator import with_allocator
from kvtwin.experiments.options.host_memory import HOST_MEMORY_FLAGS, add_host_memory_arguments, host_blocks
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.experiments.options.sizing import SizingResult
from kvtwin.experiments.options.speculation import SpeculationOptions

ENGINE_FLAGS = (
    "--scheduling-policy",
    "--enable-chunked-prefill",
    "--max-num-scheduled-tokens",
    "--max-num-active-seqs",
    "--long-prefill-token-threshold",
    "--long-prefill-token-threshold-adaptive",
    "--scheduler-reserve-full-isl",
    "--watermark",
    "--prefill-schedule-interval",
    "--prefix-caching-hash-algo",
    "--prefix-cache-retention-interval",
    "--prefix-match-unit",
    "--enable-lora",
    "--max-loras",
    "--speculative-config",
    "--kv-cache-metrics",
    "--kv-cache-metrics-sample",
    *HOST_MEMORY_FLAGS,
)
"""vLLM's flags that `add_engine_arguments` adds."""

MOST_BLOCKS = 1 << 25
"""Blocks that a simulated pool may have: a block takes about 100 bytes of this computer's memory."""


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """vLLM's scheduling and caching flags, with its defaults."""
    group = parser.add_argument_group("scheduling and prefix caching (vLLM's flags and defaults)")
    add, switch = group.add_argument, argparse.BooleanOptionalAction
    add("--scheduling-policy", choices=SCHEDULING_POLICIES, default="fcfs", help="order of admission")
    add("--enable-chunked-prefill", action=switch, default=True, help="split long prompts over several steps")
    add("--max-num-scheduled-tokens", type=Whole(), metavar="TOKENS", help="token budget, if below the batched tokens")
    add("--max-num-active-seqs", type=Whole(), metavar="SEQS", help="requests that may run, if below --max-num-seqs")
    add(
        "--long-prefill-token-threshold",
        type=Whole(0),
        default=0,
        metavar="TOKENS",
        help="most that a prefill gets per step; 0: no limit",
    )
    add(
        "--long-prefill-token-threshold-adaptive",
        action=switch,
        default=False,
        help="raise the threshold while few requests share the token budget",
    )
    add("--scheduler-reserve-full-isl", action=switch, default=True, help="admit only prompts that fit whole")
    add(
        "--watermark",
        type=Number(0, 1),
        default=0.0,
        metavar="SHARE",
        help="share of the blocks that admission leaves free, below 1",
    )
    add(
        "--prefill-schedule-interval",
        type=Whole(),
        default=1,
        metavar="STEPS",
        help="steps from one prefill to the next, while other requests decode",
    )
    add("--prefix-caching-hash-algo", choices=HASH_ALGORITHMS, default="sha256", help="how blocks are named")
    add(
        "--prefix-cache-retention-interval",
        type=Whole(0, or_none=True),
        default=0,
        metavar="TOKENS",
        help="which tails of prefixes window and state groups keep: 0, those that resend a prompt or a prefix seen "
        "twice; N, one every N tokens as well; None, all",
    )
    add(
        "--prefix-match-unit",
        type=Whole(or_none=True),
        metavar="TOKENS",
        help="tokens that a block's name covers (else the greatest common divisor of the groups' block sizes)",
    )
    add("--enable-lora", action=switch, default=False, help="serve requests with an adapter, instead of rejecting them")
    add("--max-loras", type=Whole(), metavar="N", help="adapters that may run at once (else 1, with --enable-lora)")
    add(
        "--speculative-config",
        "-sc",
        metavar="JSON",
        help="drafts of the next tokens, verified in one step; see docs/speculation.md",
    )
    add(
        "--kv-cache-metrics",
        action=switch,
        default=False,
        help="measure how long sampled blocks live, lie idle and wait for their next use",
    )
    add(
        "--kv-cache-metrics-sample",
        type=Number(0, 1),
        default=0.01,
        metavar="SHARE",
        help="share of the blocks that are sampled, above 0",
    )
    add(
        "--retention",
        default="lru",
        metavar="POLICY",
        help="a session's blocks between its turns: lru (vLLM), pin, ttl=SECONDS, pin-until-pressure; "
        "see docs/retention.md",
    )
    add(
        "--parallel-sampling",
        choices=PARALLEL_SAMPLING,
        default="prefix",
        help="how samples of one prompt share blocks: by prefix hits, as in vLLM, or by copy-on-write forks",
    )
    add("--vllm-strict", action="store_true", help="keep vLLM's misbehaviour too; see docs/deviations.md")
    add_host_memory_arguments(parser)


def engine_config(
    args: argparse.Namespace, sizing: SizingResult, speculation: SpeculationOptions | None
) -> EngineConfig:
    """The engine's configuration. UserError: a setting out of range, or a model that is not modelled."""
    plan, inputs = sizing.plan, sizing.inputs
    if inputs.pipeline_parallel_size != 1:
        raise UserError("--pipeline-parallel-size: replay models one pipeline stage so far; `size` plans several")
    if plan.num_blocks > MOST_BLOCKS:
        raise UserError(
            f"the cache would have {plan.num_blocks:,} blocks; a replay holds at most {MOST_BLOCKS:,} "
            "(--num-gpu-blocks-override)"
        )
    if args.max_loras is not None and not args.enable_lora:
        raise UserError("--max-loras: needs --enable-lora")
    num_host_blocks = host_blocks(args, sizing, MOST_BLOCKS)
    try:
        config = EngineConfig(
            num_blocks=plan.num_blocks,
            block_size=_block_size(plan),
            cache_groups=_cache_groups(plan, inputs.enable_prefix_caching),
            prefix_cache_retention_interval=args.prefix_cache_retention_interval,
            prefix_match_unit=args.prefix_match_unit,
            max_model_len=plan.max_model_len,
            max_num_seqs=inputs.max_num_seqs,
            max_num_active_seqs=args.max_num_active_seqs,
            max_num_batched_tokens=inputs.max_num_batched_tokens,
            max_num_scheduled_tokens=args.max_num_scheduled_tokens,
            enable_prefix_caching=inputs.enable_prefix_caching,
            prefix_caching_hash_algo=args.prefix_caching_hash_algo,
            enable_kv_cache_events=args.kv_events,
            hash_seed=os.environ.get("PYTHONHASHSEED"),
            enable_chunked_prefill=args.enable_chunked_prefill,
            long_prefill_token_threshold=args.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=args.long_prefill_token_threshold_adaptive,
            scheduling_policy=args.scheduling_policy,
            watermark=args.watermark,
            scheduler_reserve_full_isl=args.scheduler_reserve_full_isl,
            prefill_schedule_interval=args.prefill_schedule_interval,
            async_scheduling=inputs.async_scheduling,
            max_loras=(args.max_loras or 1) if args.enable_lora else 0,
            speculation=speculation.speculation if speculation else None,
            retention=args.retention,
            preemption_mode=args.preemption_mode,
            parallel_sampling=args.parallel_sampling,
            kv_cache_metrics=args.kv_cache_metrics,
            kv_cache_metrics_sample=args.kv_cache_metrics_sample,
            vllm_strict=args.vllm_strict,
            **num_host_blocks,
        )
        return with_allocator(config, args)
    except ValueError as error:
        name, _, rest = str(error).partition(":")
        where = inputs.shape.name if name == "cache_groups" else flag_of(name)
        raise UserError(f"{where}:{rest}") from None


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


def _cache_groups(plan: CachePlan, caches_prefixes: bool) -> tuple[CacheGroupSpec, ...]:
    """The plan's groups as the engine wants them: without prefix caching a request has one block of states."""
    return tuple(
        CacheGroupSpec(
            group.kind,
            plan.max_model_len if group.kind == "mamba" and not caches_prefixes else group.block_size,
            group.window_tokens,
        )
        for group in plan.groups
    )


def _block_size(plan: CachePlan) -> int:
    """The block size of full attention, where there is some."""
    full = [group for group in plan.groups if group.kind == "full_attention"]
    return (full or plan.groups)[0].block_size
