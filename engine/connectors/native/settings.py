"""The settings of native offloading, under vLLM's names where it has them."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.engine.connectors.native.store import EVICTION_POLICIES


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeOffloading:
    """What a native offloading connector is made with. ValueError names what is wrong."""

    num_chunks: int
    """Chunks that fit into the host."""
    blocks_per_chunk: int = 1
    eviction_policy: str = "lru"
    store_threshold: int = 0
    """A chunk is stored when it is offered for the n-th time; below 2 at once."""
    max_tracker_size: int = 64_000
    """Chunks whose offers are counted."""
    offload_prompt_only: bool = True
    """Whether blocks of generated tokens are left out."""
    sync_load_budget_tokens: int = 0
    """Tokens that one step may load before it computes, instead of in the background; 0 is none."""

    def __post_init__(self) -> None:
        for name, least in (
            ("num_chunks", 0),
            ("blocks_per_chunk", 1),
            ("store_threshold", 0),
            ("max_tracker_size", 1),
            ("sync_load_budget_tokens", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")
        if self.eviction_policy not in EVICTION_POLICIES:
            raise ValueError(
                f"eviction_policy: expected one of {', '.join(EVICTION_POLICIES)}, got {self.eviction_policy}"
            )
