"""The engine's settings, named as vLLM's flags are, with vLLM's defaults (specification, section 12)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvtwin.engine.block_hashes import HASH_ALGORITHMS
from kvtwin.engine.cache_group_checks import check_cache_groups
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.retention import parse_retention
from kvtwin.engine.speculation import Speculation

SCHEDULING_POLICIES = ("fcfs", "priority")
PREEMPTION_MODES = ("recompute", "swap")

ALLOCATORS = ("paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle")
_WITHOUT_PAGES = {
    "block_size": 1,
    "cache_groups": (),
    "enable_prefix_caching": False,
    "kv_cache_metrics": False,
    "preemption_mode": "recompute",
    "parallel_sampling": "prefix",
    "speculation": None,
}
"""The only values that these settings can have with a contiguous allocator."""

PARALLEL_SAMPLING = ("prefix", "fork")
"""How samples of one prompt share blocks: by hits, as in vLLM, or by forks (docs/parallel-samples.md)."""

_FORKABLE_KINDS = ("full_attention", "sliding_window", "chunked_local_attention")
"""Kinds of cache groups in which a token's keys and values stay as they are while later ones are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides, checked when it is made: ValueError names the field and what it may be.

    ``num_blocks`` includes the null block. ``vllm_strict`` keeps the behaviour from which kvtwin deviates on
    purpose (see docs/deviations.md); without it, requests that can never run are rejected and phantom hits are
    not served.
    """

    num_blocks: int
    block_size: int = 16
    allocator: str = "paged"
    """The contiguous ones (:mod:`kvtwin.engine.contiguous.contiguous_cache`) count in blocks of one token and cache no
    prefixes."""
    cache_groups: tuple[CacheGroupSpec, ...] = ()
    """Empty: one group of full attention with ``block_size``."""
    prefix_cache_retention_interval: int | None = 0
    """Which tails of groups that forget are kept: None all, 0 those that resend a prompt, m also one every m tokens."""
    prefix_match_unit: int | None = None
    """Tokens that one block hash covers; None: the greatest common divisor of the groups' block sizes."""
    max_model_len: int = 8192
    max_num_seqs: int = 128
    max_num_active_seqs: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_scheduled_tokens: int | None = None
    enable_prefix_caching: bool = True
    prefix_caching_hash_algo: str = "sha256"
    hash_seed: str | None = None
    """Value of PYTHONHASHSEED on the server, if it is set there."""
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduling_policy: str = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    prefill_schedule_interval: int = 1
    async_scheduling: bool = True
    parallel_sampling: str = "prefix"
    max_loras: int = 0
    """Adapters that may run at once; 0 refuses requests with an adapter."""
    preemption_mode: str = "recompute"
    """recompute is vLLM's; swap keeps the computed tokens of preempted requests in the host."""
    num_swap_blocks: int = 0
    """Host blocks for preempted requests."""
    num_offload_blocks: int = 0
    """Host blocks for evicted blocks; 0 is no offload tier."""
    enable_kv_cache_events: bool = False
    kv_cache_metrics: bool = False
    """Whether lifetimes of blocks are measured (:mod:`kvtwin.engine.block_metrics`)."""
    kv_cache_metrics_sample: float = 0.01
    """Share of the blocks that are."""
    retention: str = "lru"
    """What becomes of a session's blocks between its turns; vLLM knows only ``lru``
    (:mod:`kvtwin.engine.retention`)."""
    speculation: Speculation | None = None
    vllm_strict: bool = False

    def __post_init__(self) -> None:
        _at_least("num_blocks", self.num_blocks, 2)
        for name in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            _at_least(name, getattr(self, name), 1)
        for name in ("max_num_active_seqs", "max_num_scheduled_tokens"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        _at_least("prefill_schedule_interval", self.prefill_schedule_interval, 1)
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _at_least("max_loras", self.max_loras, 0)
        _one_of("prefix_caching_hash_algo", self.prefix_caching_hash_algo, HASH_ALGORITHMS)
        _one_of("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        _one_of("preemption_mode", self.preemption_mode, PREEMPTION_MODES)
        _at_least("num_swap_blocks", self.num_swap_blocks, int(self.preemption_mode == "swap"))
        _at_least("num_offload_blocks", self.num_offload_blocks, 0)
        if self.num_offload_blocks and not self.enable_prefix_caching:
            raise ValueError("num_offload_blocks: blocks can be found in the host only with enable_prefix_caching")
        parse_retention(self.retention)
        if self.retention != "lru" and not self.enable_prefix_caching:
            raise ValueError(f"retention: {self.retention} keeps cached blocks, and prefix caching is off")
        _one_of("allocator", self.allocator, ALLOCATORS)
        if self.allocator != "paged":
            for name, only in _WITHOUT_PAGES.items():
                if getattr(self, name) != only:
                    wanted = "none" if only is None else f"only {only}, got {getattr(self, name)}"
                    raise ValueError(f"{name}: {self.allocator} takes {wanted}")
        _one_of("parallel_sampling", self.parallel_sampling, PARALLEL_SAMPLING)
        if self.parallel_sampling == "fork":
            if self.speculation:
                raise ValueError("parallel_sampling: expected prefix with speculative decoding, got fork")
            for spec in self.cache_groups:
                if spec.kind not in _FORKABLE_KINDS:
                    raise ValueError(f"parallel_sampling: expected prefix with cache groups of {spec.kind}, got fork")
        check_cache_groups(self)
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark: expected 0 <= watermark < 1, got {self.watermark}")
        if not 0.0 < self.kv_cache_metrics_sample <= 1.0:
            raise ValueError(
                f"kv_cache_metrics_sample: expected a share above 0 and up to 1, got {self.kv_cache_metrics_sample}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: expected at least max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_batched_tokens}"
            )
        if self.max_num_batched_tokens <= self.lookahead_slots:
            raise ValueError(
                f"max_num_batched_tokens: expected more than the {self.lookahead_slots} lookahead slots of the drafts, "
                f"got {self.max_num_batched_tokens}"
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs > self.max_num_seqs:
            raise ValueError(
                f"max_num_active_seqs: expected at most max_num_seqs ({self.max_num_seqs}), "
                f"got {self.max_num_active_seqs}"
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            raise ValueError(
                f"long_prefill_token_threshold: expected at most max_model_len ({self.max_model_len}), "
                f"got {self.long_prefill_token_threshold}"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError(
                f"max_num_batched_tokens: without chunked prefill expected at least max_model_len "
                f"({self.max_model_len}), got {self.max_num_batched_tokens}"
            )

    @property
    def group_specs(self) -> tuple[CacheGroupSpec, ...]:
        """The cache groups, never none."""
        return self.cache_groups or (CacheGroupSpec("full_attention", self.block_size),)

    @property
    def alignment_tokens(self) -> int:
        """Hits are multiples of this, and prefixes are cached up to one (specification, section 10.2)."""
        return math.lcm(*(spec.block_size for spec in self.group_specs))

    @property
    def hash_block_tokens(self) -> int:
        """Tokens that one block hash covers (specification, section 10.2)."""
        block_sizes = [spec.block_size for spec in self.group_specs]
        if not self.enable_prefix_caching:
            return math.lcm(*block_sizes)
        return self.prefix_match_unit or math.gcd(*block_sizes)

    @property
    def caches_states(self) -> bool:
        """Whether states of state-space layers can be hit."""
        return self.enable_prefix_caching and any(spec.kind == "mamba" for spec in self.group_specs)

    @property
    def token_budget(self) -> int:
        """Tokens that one step may schedule."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def max_running_requests(self) -> int:
        """Requests that may run at once: the seats."""
        seats = self.max_num_active_seqs or self.max_num_seqs
        if self.speculation and self.speculation.method == "dflash":  # one pass drafts for all requests that run
            seats = min(seats, self.max_num_batched_tokens // (1 + self.speculation.num_speculative_tokens))
        return seats

    @property
    def lookahead_slots(self) -> int:
        """Slots behind the scheduled tokens that every allocation covers too (specification, section 9.1)."""
        return self.speculation.lookahead_slots if self.speculation else 0

    def drops_last_block(self, spec: CacheGroupSpec) -> bool:
        """Whether hits give the last block of this group away (specification, section 9.9)."""
        if self.speculation is None or not self.speculation.drops_last_block:
            return False
        return spec in ([spec for spec in self.group_specs if spec.is_eagle_group] or self.group_specs)

    @property
    def hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash covers too (specification, section 2.7)."""
        return self.speculation.hash_lookahead_tokens if self.speculation else 0

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that may be scheduled before the oldest one's output is processed (specification, section 8.1)."""
        return 2 if self.async_scheduling else 1

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission leaves free while something runs (specification, section 4.1)."""
        return int(self.watermark * self.num_blocks)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value}")
