"""KV cache events as vLLM publishes them (spec section 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that one allocation of one cache group made hit-able, in prefix order."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    lora_name: str | None
    extra_keys: tuple[tuple[Any, ...] | None, ...]
    group_idx: int
    kv_cache_spec_kind: str
    sliding_window: int | None = None
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """A block that was evicted."""

    block_hashes: tuple[int, ...]
    group_idx: int
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The prefix cache was reset."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def published_hash(block_hash: bytes) -> int:
    """A block hash as it goes over the wire by default: its low 64 bits, big-endian."""
    return int.from_bytes(block_hash[-8:], "big")
