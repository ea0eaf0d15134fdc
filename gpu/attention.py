"""Paged attention: what a backend does, and what it is given to do.

A token's keys and values live in a *slot*: block times block size, plus the offset inside the block. A sequence's block
table says which block holds which of its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor


class LayerCache(NamedTuple):
    """Keys and values of one layer: each ``[num_blocks, block_size, num_kv_heads, head_dim]``.

    Strides are free, but the last dimension is contiguous.
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Where the ``T`` tokens of a step's ``S`` sequences are, as tensors on the device.

    Sequences with a single query come first. Every sequence has at least one.
    """

    slots: Tensor
    """``[T]`` int64: where each token's key and value are written; -1: nowhere."""
    query_starts: Tensor
    """``[S + 1]`` int32: sequence ``s`` has tokens ``query_starts[s]`` up to ``query_starts[s + 1]``."""
    context_tokens: Tensor
    """``[S]`` int32: tokens that the sequence's last query sees, itself included."""
    block_tables: Tensor
    """``[S, W]`` int32."""
    num_decodes: int
    """Leading sequences with exactly one query."""
    max_query_tokens: int
    """At least the most queries of a sequence."""
    max_context_tokens: int
    """At least the most of ``context_tokens``."""


class Attention(Protocol):
    """A backend. All of a step's writes of a layer are asked for before its reads."""

    def write(self, keys: Tensor, values: Tensor, layer: LayerCache, slots: Tensor) -> None:
        """Store ``keys`` and ``values``, ``[T, num_kv_heads, head_dim]``, in their slots (int64 ``[T]``; -1: not)."""

    def attend(self, query: Tensor, layer: LayerCache, batch: AttentionBatch) -> Tensor:
        """Causal attention of ``query``, ``[T, num_query_heads, head_dim]``, to what is in the cache; same shape.

        Scores are scaled by ``head_dim ** -0.5``. Query heads share key heads in consecutive groups.
        """

    def copy_blocks(self, storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """Copy whole blocks of ``storage``, ``[planes, num_blocks, block_size, num_kv_heads, head_dim]``.

        ``sources`` and ``destinations`` are int64 ``[N]``; no block is both.
        """
