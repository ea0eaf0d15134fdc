"""The engine's settings, checked."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.block_hashes import HASH_ALGORITHMS
from kvtwin.engine.cache_group_checks import check_cache_groups
from kvtwin.engine.retention import parse_retention
from kvtwin.engine.settings import (
    ALLOCATORS,
    PARALLEL_SAMPLING,
    PREEMPTION_MODES,
    SCHEDULING_POLICIES,
    EngineSettings,
)

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

_FORKABLE_KINDS = ("full_attention", "sliding_window", "chunked_local_attention")
"""Kinds of cache groups in which a token's keys and values stay as they are while later ones are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(EngineSettings):
    """The settings of an engine, checked when it is made: ValueError names the field and what it may be."""

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
        _at_least("encoder_cache_size", self.encoder_cache_size, 0)
        if self.max_num_encoder_input_tokens is not None:
            _at_least("max_num_encoder_input_tokens", self.max_num_encoder_input_tokens, 1)
        if self.disable_chunked_mm_input and self.caches_states:
            raise ValueError("disable_chunked_mm_input: states are cached, and their chunks may end inside an image")
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
        self._check_drafts()
        if self.hits_parts and (self.num_swap_blocks or self.num_offload_blocks):
            name = "num_swap_blocks" if self.num_swap_blocks else "num_offload_blocks"
            raise ValueError(
                f"{name}: expected 0 where hits may end inside a block of states, got {getattr(self, name)}"
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

    def _check_drafts(self) -> None:
        """Refuse what vLLM would not start with, or would die of as soon as a request has one token to compute."""
        threshold = self.long_prefill_token_threshold
        num_drafts = self.speculation.num_speculative_tokens if self.speculation else 0
        if 0 < threshold <= num_drafts and not self.caches_states:
            raise ValueError(
                f"long_prefill_token_threshold: expected 0, or more than the {num_drafts} drafts of a step, got "
                f"{threshold}: vLLM ends with an assertion when it cuts the padding of a decode"
            )
        if not self.enable_prefix_caching:
            return
        drops = self.hits_drop_a_block or any(spec.is_eagle_group for spec in self.group_specs)
        lookahead_tokens = self.prefill_lookahead_tokens
        if drops and self.common_block_tokens < lookahead_tokens:
            raise ValueError(
                f"speculation: expected blocks of at least the {lookahead_tokens} tokens that the MTP modules read "
                f"ahead, got {self.common_block_tokens}"
            )
        kinds = {spec.kind for spec in self.group_specs}
        if self.hash_lookahead_tokens > 1 and "full_attention" not in kinds:
            raise ValueError(
                "speculation: expected full attention beside the other cache groups, got none: vLLM ends with an "
                "IndexError where hashes cover what several MTP modules read ahead"
            )
        for spec in self.group_specs:
            if spec.prefill_checkpoint_alignment is not None and num_drafts >= spec.block_size:
                raise ValueError(
                    f"speculation: expected fewer drafts than the {spec.block_size} tokens of a block of states with "
                    f"prefill checkpoints, got {num_drafts}: vLLM ends with an assertion when drafts fill a block"
                )


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected at least {least}, got {value}")


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value}")
