"""What a cache group is, as far as decisions go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheGroupSpec:
    """Groups with equal specifications are looked up together.

    ``kind`` is vLLM's name; ``window_tokens`` is the sliding window, or the chunk of chunked local attention.
    """

    kind: str
    block_size: int
    window_tokens: int | None = None
