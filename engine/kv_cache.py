"""What the scheduler asks of a KV cache, and which one it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvtwin.engine.block_keys import KeySpace
from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.cache_groups import FindBlock
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.contiguous.contiguous_cache import ContiguousCache
from kvtwin.engine.contiguous.range_pool import RangePool
from kvtwin.engine.executor import BlockCopy, HostCopy
from kvtwin.engine.forking import Forks, NoForks
from kvtwin.engine.hit import Hit
from kvtwin.engine.host_memory.offload_tier import OffloadTier
from kvtwin.engine.host_memory.swap_space import SwapSpace
from kvtwin.engine.kv_cache_manager import KVCacheManager
from kvtwin.engine.kv_events import KVEventLog
from kvtwin.engine.observer import Observer
from kvtwin.engine.request import BlockTables, Request


class KVCache(Protocol):
    """Where requests keep the keys and values of their tokens."""

    @property
    def pool(self) -> BlockPool | RangePool:
        """The device's memory."""

    @property
    def swap(self) -> SwapSpace | None:
        """Where preempted requests wait, if not to be computed again."""

    @property
    def offload(self) -> OffloadTier | None:
        """Where evicted blocks can be found."""

    @property
    def host_memory(self) -> Sequence[SwapSpace | OffloadTier]:
        """Both of these, as far as they are there."""

    @property
    def forks(self) -> Forks | NoForks:
        """How requests share blocks that are partly filled, if they can."""

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` what happens to requests from now on."""

    @property
    def events(self) -> KVEventLog | None:
        """The KV events since they were last taken; None where nobody asked for them, or nothing is cached."""

    def start_step(self) -> None:
        """Take note that another step is being decided."""

    def why_never_fits(self, request: Request, num_tokens: int) -> str | None:
        """Why ``num_tokens`` tokens of ``request`` do not fit when nothing else is held; None if they do."""

    def find_hit(self, request: Request) -> Hit:
        """The longest cached prefix of ``request``, short of its last known token."""

    def num_cached_tokens(self, request: Request, max_tokens: int | None = None, find: FindBlock | None = None) -> int:
        """Leading tokens of ``request`` that the device could serve now (:meth:`KVCacheManager.num_cached_tokens`)."""

    def must_wait(self, hit: Hit) -> bool:
        """Whether ``hit`` cannot be adopted before the next step, whatever is free."""

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: Hit | None = None,
        *,
        num_reserved_blocks: int = 0,
        reserve_full_sequence: bool = False,
    ) -> BlockTables | None:
        """Slots for more tokens of ``request``; None when there are too few (:meth:`KVCacheManager.allocate_slots`)."""

    def register(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` tokens hit-able."""

    def free(self, request: Request, *, to_host: bool = False) -> None:
        """Let go of everything that ``request`` holds; with ``to_host``, keep it there if that is possible."""

    def mark_phantoms(self, request: Request) -> None:
        """Note that the step just scheduled for ``request`` will not run."""

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes if no request holds a block; return whether that was so."""

    def take_copies(self) -> list[BlockCopy]:
        """Copies of blocks of which a part was hit, that became necessary since the last call."""

    def take_host_copies(self) -> tuple[list[HostCopy], list[HostCopy]]:
        """Copies to and from the host that became necessary since the last call."""


def make_kv_cache(config: EngineConfig, keys: KeySpace) -> KVCache:
    """The KV cache of an ``allocator``."""
    if config.allocator == "paged":
        return KVCacheManager(config, keys)
    return ContiguousCache(config)
