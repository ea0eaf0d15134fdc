"""The options of vLLM's scheduler and prefix cache."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.block_hashes import HASH_ALGORITHMS
from kvtwin.engine.settings import ALLOCATORS, PARALLEL_SAMPLING, SCHEDULING_POLICIES
from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, Number, Switch, Text, Whole


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Scheduling and prefix caching (vLLM's flags and defaults)."""

    scheduling_policy: str = option("fcfs", Choice(SCHEDULING_POLICIES), "order in which waiting requests are admitted")
    enable_chunked_prefill: bool | None = option(
        None, Switch(), "split long prompts over several steps (default: on with vLLM)"
    )
    max_num_scheduled_tokens: int | None = option(
        None, Whole("TOKENS"), "token budget of a step, if less than --max-num-batched-tokens"
    )
    max_num_active_seqs: int | None = option(None, Whole("SEQS"), "most running requests, if less than --max-num-seqs")
    long_prefill_token_threshold: int = option(
        0, Whole("TOKENS", 0), "most tokens that one prefill gets per step; 0: no limit"
    )
    long_prefill_token_threshold_adaptive: bool = option(
        False, Switch(), "raise the threshold while few requests share the token budget"
    )
    scheduler_reserve_full_isl: bool = option(
        True, Switch(), "admit a request only if its whole prompt fits in the free blocks"
    )
    watermark: float = option(0.0, Number("SHARE", 0, 1), "share of the blocks that admission keeps free, below 1")
    prefill_schedule_interval: int = option(
        1, Whole("STEPS"), "start prefills only every N steps while other requests decode"
    )
    prefix_caching_hash_algo: str = option("sha256", Choice(HASH_ALGORITHMS), "hash function for block keys")
    prefix_cache_retention_interval: int | None = option(
        0,
        Whole("TOKENS", 0, or_none=True),
        "which prefix ends window and state groups keep cached. 0: for a prompt sent again, or a prefix seen twice; "
        "N: also one every N tokens; None: all",
    )
    prefix_match_unit: int | None = option(
        None,
        Whole("TOKENS", or_none=True),
        "tokens per block key (default: the greatest common divisor of the groups' block sizes)",
    )
    enable_lora: bool = option(False, Switch(), "serve requests with a LoRA adapter instead of rejecting them")
    max_loras: int | None = option(
        None, Whole(), "most LoRA adapters that run at the same time (default: 1 with --enable-lora)"
    )
    encoder_cache_size: int | None = option(
        None,
        Whole("EMBEDDINGS", 0, or_none=True),
        "image embeddings to keep (default, as in vLLM: the larger of --max-num-batched-tokens and the model's largest "
        "image, if it takes any); "
        "0: images only make block hashes differ",
    )
    max_num_encoder_input_tokens: int | None = option(
        None,
        Whole("EMBEDDINGS", or_none=True),
        "image embeddings that one step may compute (default, as in vLLM: the larger of --max-num-batched-tokens "
        "and --encoder-cache-size)",
    )
    disable_chunked_mm_input: bool = option(
        False, Switch(), "compute all tokens of an image in one step; some models need it, and always do"
    )
    kv_cache_metrics: bool = option(False, Switch(), "measure lifetime, idle time and reuse gaps of sampled blocks")
    kv_cache_metrics_sample: float = option(0.01, Number("SHARE", 0, 1), "share of blocks to sample, above 0")
    retention: str = option(
        "lru",
        Text("POLICY"),
        "what to do with a session's blocks between turns: lru (vLLM), pin, ttl=SECONDS, pin-until-pressure; "
        "see docs/retention.md",
    )
    parallel_sampling: str = option(
        "prefix",
        Choice(PARALLEL_SAMPLING),
        "how samples of one prompt share blocks: prefix hits (vLLM) or copy-on-write forks",
    )
    allocator: str = option(
        "paged",
        Choice(ALLOCATORS),
        "contiguous-*: reserve one range for all tokens of a request, without prefix caching; see docs/waste.md",
    )
    vllm_strict: bool = option(False, Switch(has_off=False), "also reproduce vLLM's bugs; see docs/deviations.md")
