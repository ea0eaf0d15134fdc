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

    @property
    def is_cached_sparsely(self) -> bool:
        """Whether ``prefix_cache_retention_interval`` tells which of its blocks are cached."""
        return self.kind in ("sliding_window", "mamba")
