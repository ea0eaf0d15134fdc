"""The engine's settings, under vLLM's names and with its defaults (specification, section 12), and what they imply."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.server_identity import VLLM, ServerIdentity
from kvtwin.engine.speculation import Speculation

SCHEDULING_POLICIES = ("fcfs", "priority")
PREEMPTION_MODES = ("recompute", "swap")
ALLOCATORS = ("paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle")
PARALLEL_SAMPLING = ("prefix", "fork")
"""How samples of one prompt share blocks: by hits, as in vLLM, or by forks (docs/parallel-samples.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Everything that decides, as :class:`kvtwin.engine.config.EngineConfig` has it once it is checked.

    ``num_blocks`` includes the null block. ``vllm_strict`` keeps the behaviour from which kvtwin deviates on
    purpose (see docs/deviations.md); without it, requests that can never run are rejected and phantom hits are
    not served.
    """

    num_blocks: int
    server: ServerIdentity = VLLM
    """Whose scheduler it is; one other than vLLM's brings settings of its own and does not read those of vLLM alone."""
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
    encoder_cache_size: int = 0
    """Embeddings of images that are kept; 0: there is no encoder, and images matter to block hashes only."""
    max_num_encoder_input_tokens: int | None = None
    """Embeddings that one step may compute; None: vLLM's default."""
    disable_chunked_mm_input: bool = False
    """Whether a step computes all tokens of an image or none."""
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

    @property
    def group_specs(self) -> tuple[CacheGroupSpec, ...]:
        """The cache groups, never none."""
        return self.cache_groups or (CacheGroupSpec("full_attention", self.block_size),)

    @property
    def common_block_tokens(self) -> int:
        """So many tokens are whole blocks of every group: the unit of section 10.2 of the specification."""
        return math.lcm(*(spec.block_size for spec in self.group_specs))

    @property
    def hits_parts(self) -> bool:
        """Whether hits may end inside a block (specification, section 10.17)."""
        specs, hash_block_size = self.group_specs, self.hash_block_size
        return (
            self.enable_prefix_caching
            and len(specs) > 1
            and any(spec.kind == "mamba" and spec.block_size > hash_block_size for spec in specs)
            and all(spec.can_be_hit_in_part or spec.block_size == hash_block_size for spec in specs)
        )

    @property
    def alignment_tokens(self) -> int:
        """Hits are multiples of this (specification, section 10.2)."""
        return self.hash_block_size if self.hits_parts else self.common_block_tokens

    @property
    def hash_block_size(self) -> int:
        """Tokens that one block hash covers (specification, section 10.2)."""
        block_sizes = [spec.block_size for spec in self.group_specs]
        if not self.enable_prefix_caching:
            return math.lcm(*block_sizes)
        return self.prefix_match_unit or math.gcd(*block_sizes)

    @property
    def key_settings(self) -> tuple[int, str, str | None, int]:
        """What a :class:`~kvtwin.engine.block_keys.KeySpace` is made with."""
        return self.hash_block_size, self.prefix_caching_hash_algo, self.hash_seed, self.hash_lookahead_tokens

    @property
    def caches_states(self) -> bool:
        """Whether states of state-space layers can be hit."""
        return self.enable_prefix_caching and any(spec.kind == "mamba" for spec in self.group_specs)

    @property
    def token_budget(self) -> int:
        """Tokens that one step may schedule."""
        return min(self.scheduled_tokens_limit, self.max_num_batched_tokens)

    @property
    def scheduled_tokens_limit(self) -> int:
        """``max_num_scheduled_tokens``, or its default; it may be above what a step can hold."""
        return self.max_num_scheduled_tokens or self.max_num_batched_tokens

    @property
    def encoder_budget(self) -> int:
        """Embeddings that one step may compute (specification, section 16.2)."""
        return self.max_num_encoder_input_tokens or max(self.max_num_batched_tokens, self.encoder_cache_size)

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

    @property
    def hits_drop_a_block(self) -> bool:
        """Whether hits give the last block of some group away (specification, section 9.9)."""
        return self.speculation is not None and self.speculation.drops_last_block

    def drops_last_block(self, spec: CacheGroupSpec) -> bool:
        """Whether hits give the last block of this group away."""
        if not self.hits_drop_a_block:
            return False
        return spec in ([spec for spec in self.group_specs if spec.is_eagle_group] or self.group_specs)

    @property
    def hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash covers too (specification, section 2.7)."""
        return self.speculation.hash_lookahead_tokens if self.speculation else 0

    @property
    def prefill_lookahead_tokens(self) -> int:
        """Known tokens behind a chunk of a prompt that a drafter reads (specification, section 9.13)."""
        return self.speculation.prefill_lookahead_tokens if self.speculation else 0

    @property
    def num_unsettled_tokens(self) -> int:
        """Last computed tokens whose keys and values a drafter of several modules may still change."""
        return max(0, self.prefill_lookahead_tokens - 1)

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that may be scheduled before the oldest one's output is processed (specification, section 8.1)."""
        return 2 if self.async_scheduling else 1

    @property
    def max_tokens_in_flight(self) -> int:
        """Tokens of all steps that may be under way, as vLLM's admission counts them (specification, section 10.4)."""
        return self.max_num_batched_tokens * self.max_steps_in_flight

    @property
    def max_slots_ahead(self) -> int:
        """Slots that a request may have ahead of the last token whose step is done, for drafts too."""
        return self.token_budget * self.max_steps_in_flight + self.lookahead_slots

    @property
    def watermark_blocks(self) -> int:
        """Blocks that admission leaves free while something runs (specification, section 4.1)."""
        return int(self.watermark * self.num_blocks)
