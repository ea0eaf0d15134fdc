"""The options of vLLM's scheduler and prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.block_hashes import HASH_ALGORITHMS
from kvtwin.engine.config import ALLOCATORS, PARALLEL_SAMPLING, SCHEDULING_POLICIES
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, Number, Switch, Text, Whole


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Scheduling and prefix caching (vLLM's flags and defaults)."""

    scheduling_policy: str = option("fcfs", Choice(SCHEDULING_POLICIES), "order of admission")
    enable_chunked_prefill: bool = option(True, Switch(), "split long prompts over several steps")
    max_num_scheduled_tokens: int | None = option(None, Whole("TOKENS"), "token budget, if below the batched tokens")
    max_num_active_seqs: int | None = option(None, Whole("SEQS"), "requests that may run, if below --max-num-seqs")
    long_prefill_token_threshold: int = option(0, Whole("TOKENS", 0), "most that a prefill gets per step; 0: no limit")
    long_prefill_token_threshold_adaptive: bool = option(
        False, Switch(), "raise the threshold while few requests share the token budget"
    )
    scheduler_reserve_full_isl: bool = option(True, Switch(), "admit only prompts that fit whole")
    watermark: float = option(0.0, Number("SHARE", 0, 1), "share of the blocks that admission leaves free, below 1")
    prefill_schedule_interval: int = option(
        1, Whole("STEPS"), "steps from one prefill to the next, while other requests decode"
    )
    prefix_caching_hash_algo: str = option("sha256", Choice(HASH_ALGORITHMS), "how blocks are named")
    prefix_cache_retention_interval: int | None = option(
        0,
        Whole("TOKENS", 0, or_none=True),
        "which tails of prefixes window and state groups keep: 0, those that resend a prompt or a prefix seen twice; "
        "N, one every N tokens as well; None, all",
    )
    prefix_match_unit: int | None = option(
        None,
        Whole("TOKENS", or_none=True),
        "tokens that a block's name covers (else the greatest common divisor of the groups' block sizes)",
    )
    enable_lora: bool = option(False, Switch(), "serve requests with an adapter, instead of rejecting them")
    max_loras: int | None = option(None, Whole(), "adapters that may run at once (else 1, with --enable-lora)")
    kv_cache_metrics: bool = option(
        False, Switch(), "measure how long sampled blocks live, lie idle and wait for their next use"
    )
    kv_cache_metrics_sample: float = option(
        0.01, Number("SHARE", 0, 1), "share of the blocks that are sampled, above 0"
    )
    retention: str = option(
        "lru",
        Text("POLICY"),
        "a session's blocks between its turns: lru (vLLM), pin, ttl=SECONDS, pin-until-pressure; see docs/retention.md",
    )
    parallel_sampling: str = option(
        "prefix",
        Choice(PARALLEL_SAMPLING),
        "how samples of one prompt share blocks: by prefix hits, as in vLLM, or by copy-on-write forks",
    )
    allocator: str = option(
        "paged",
        Choice(ALLOCATORS),
        "contiguous-*: one range per request for all its tokens, without prefix caching (docs/waste.md)",
    )
    vllm_strict: bool = option(False, Switch(has_off=False), "keep vLLM's misbehaviour too; see docs/deviations.md")
