"""TensorRT-LLM's KV cache events: created, stored, removed, updated.

Hashes are kvtwin's own: 64 bits that name a block and all before it, not those that TensorRT-LLM would publish.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from kvtwin.engine.trtllm.block import Block

_HASH_BYTES = 8


@dataclass(frozen=True, slots=True)
class Created:
    """The cache was made."""

    event_id: int
    num_blocks_per_cache_level: tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block that can be found from now on."""

    block_hash: int
    num_tokens: int
    priority: int
    cache_level: int
    """0: the device; 1: the host."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks of one sequence entered the tree, each behind the one before it."""

    event_id: int
    parent_hash: int | None
    blocks: tuple[StoredBlock, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """A block left the tree."""

    event_id: int
    block_hash: int


@dataclass(frozen=True, slots=True)
class Updated:
    """A block moved between device and host, or its priority changed; None where it did not."""

    event_id: int
    block_hash: int
    cache_level: tuple[int, int] | None = None
    priority: tuple[int, int] | None = None


Event = Created | Stored | Removed | Updated


class NoEvents:
    """Nobody asked for events."""

    def created(self, num_device_blocks: int, num_host_blocks: int) -> None: ...
    def stored(self, parent: Block, blocks: list[Block]) -> None: ...
    def removed(self, block: Block) -> None: ...
    def moved(self, block: Block) -> None: ...
    def reprioritised(self, block: Block, before: int) -> None: ...


class EventLog(NoEvents):
    """The events since they were last taken, in order, counted from 0."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._next_id = 0

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def created(self, num_device_blocks: int, num_host_blocks: int) -> None:
        """The cache has so many blocks."""
        self._events.append(Created(self._id(), (num_device_blocks, num_host_blocks)))

    def stored(self, parent: Block, blocks: list[Block]) -> None:
        """``blocks``, a chain behind ``parent``, are in the tree."""
        stored = tuple(
            StoredBlock(_hash_of(block), block.num_tokens, block.priority, int(not block.on_device)) for block in blocks
        )
        parent_hash = _hash_of(parent) if parent.parent else None
        self._events.append(Stored(self._id(), parent_hash, stored))

    def removed(self, block: Block) -> None:
        """``block`` is about to leave the tree."""
        self._events.append(Removed(self._id(), _hash_of(block)))

    def moved(self, block: Block) -> None:
        """``block``, which is in the tree, has come to the host or back."""
        level = int(not block.on_device)
        self._events.append(Updated(self._id(), _hash_of(block), cache_level=(1 - level, level)))

    def reprioritised(self, block: Block, before: int) -> None:
        """``block``, which is in the tree, had another priority before."""
        self._events.append(Updated(self._id(), _hash_of(block), priority=(before, block.priority)))

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


def _hash_of(block: Block) -> int:
    chain = []
    node: Block | None = block
    while node is not None and node.parent is not None:
        chain.append(node.edge)
        node = node.parent
    digest = b""
    for edge in reversed(chain):
        digest = hashlib.blake2b(digest + edge, digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big")
