"""What a cache group is, as far as decisions go."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CacheGroupSpec:
    """Groups with equal specifications are looked up together.

    ``kind`` is vLLM's name; ``window_tokens`` is the sliding window, or the chunk of chunked local attention.
    """

    kind: str
    block_size: int
    window_tokens: int | None = None
    is_eagle_group: bool = field(default=False, compare=False)
    """Whether layers of an EAGLE-like drafter are among it; where no group says so, all count as such."""
    num_speculative_blocks: int = 0
    """States: blocks for the states behind each draft, beside that of the newest token."""
    num_prefill_checkpoint_blocks: int = 0
    """States: above 0 where the end of a prompt leaves a second, earlier state to be hit, in a block of its own."""
    prefill_checkpoint_alignment: int | None = None
    """States: a checkpoint lies a multiple of so many tokens behind the start of its chunk; None: there is none."""

    @property
    def can_be_hit_in_part(self) -> bool:
        """Whether a hit may end inside one of its blocks."""
        return self.kind in ("full_attention", "mamba")

    @property
    def is_cached_sparsely(self) -> bool:
        """Whether ``prefix_cache_retention_interval`` tells which of its blocks are cached."""
        return self.kind in ("sliding_window", "mamba")
