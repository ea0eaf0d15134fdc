"""KV cache events as vLLM publishes them (specification, section 11), and the log that collects them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvtwin.engine.block_hashes import ExtraKeys
from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.cache_groups import CacheGroup
from kvtwin.engine.pool_listener import PoolListener, TablePart
from kvtwin.engine.request import Request


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that one allocation of one cache group made hit-able, in prefix order."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    lora_id: int | None
    lora_name: str | None
    extra_keys: tuple[tuple[Any, ...] | None, ...] | None
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


class KVEventLog(PoolListener):
    """The KV events of one engine since they were last taken, in order."""

    def __init__(self, keys: KeySpace, groups: Sequence[CacheGroup]) -> None:
        self._keys = keys
        self._groups = groups
        self._events: list[KVEvent] = []

    def registered(self, blocks: Sequence[int], keys: Sequence[int], part: TablePart | None) -> None:
        assert part
        block_size = self._groups[part.group_index].block_size
        hashes_per_block = block_size // self._keys.hash_block_size
        self._add_stored(part, block_size, part.request.block_keys[hashes_per_block - 1 :: hashes_per_block])

    def registered_part(self, request: Request, group_index: int, hash_index: int) -> None:
        """A block of ``request`` has the key of its part up to block hash ``hash_index`` as well."""
        block = range(hash_index, hash_index + 1)
        part = TablePart(request, group_index, block, block)
        self._add_stored(part, self._keys.hash_block_size, request.block_keys)

    def _add_stored(self, part: TablePart, block_size: int, keys: Sequence[int]) -> None:
        """vLLM publishes the tokens of all newly full blocks, but hashes and extra keys only of those kept."""
        request, group_index, blocks, kept = part
        group, lora = self._groups[group_index], request.lora
        event = BlockStored(
            block_hashes=tuple(self._published_hash(keys[position]) for position in kept),
            parent_block_hash=self._published_hash(keys[blocks.start - 1]) if blocks.start else None,
            token_ids=tuple(request.content.token_ids(blocks.start * block_size, blocks.stop * block_size)),
            block_size=block_size,
            lora_id=lora.number if lora else None,
            lora_name=lora.name if lora else None,
            extra_keys=tuple(
                _untagged(request.content.extra_keys(position * block_size, (position + 1) * block_size))
                for position in kept
            )
            or None,
            group_idx=group_index,
            kv_cache_spec_kind=group.kind,
            sliding_window=group.spec.window_tokens if group.kind == "sliding_window" else None,
        )
        self._events.append(event)

    def evicted(self, block: int, key: int) -> None:
        block_key, group_index = divmod(key, len(self._groups))
        self._events.append(BlockRemoved((self._published_hash(block_key),), group_index))

    def lost_key(self, block: int, key: int) -> None:
        self.evicted(block, key)

    def cleared(self) -> None:
        self._events.append(AllBlocksCleared())

    def take(self) -> list[KVEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def _published_hash(self, key: int) -> int:
        """A block hash as it goes over the wire by default: its low 64 bits, big-endian; else the key itself."""
        block_hash = self._keys.hash_of_key(key)
        return key % 2**64 if block_hash is None else int.from_bytes(block_hash[-8:], "big")


def _untagged(extra_keys: ExtraKeys) -> tuple[object, ...] | None:
    """Extra keys as KV events carry them: LoRA name, (image hash, offset), salt, without tags and paths."""
    if extra_keys is None:
        return None
    untagged: list[object] = []
    for tag, *values in extra_keys:
        untagged.append(tuple(values) if tag == "mm" else values[0])
    return tuple(untagged)
