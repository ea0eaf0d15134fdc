"""The KV cache of servers before paging: one contiguous range per request, reserved when it is admitted.

The three allocators are the baselines of the PagedAttention paper (Kwon et al., SOSP 2023, section 6.1: "Orca" Max,
Pow2 and Oracle). The paper places ranges with a buddy allocator, which rounds them up to powers of two; here
placement is by best fit, to the slot, so that what is lost is lost to contiguity alone.
"""

from __future__ import annotations

from kvtwin.engine.cache_groups import FindBlock
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.contiguous.range_pool import RangePool
from kvtwin.engine.demand import Demand
from kvtwin.engine.executor import BlockCopy, HostCopy
from kvtwin.engine.forking import NoForks
from kvtwin.engine.hit import Hit
from kvtwin.engine.observer import Observer
from kvtwin.engine.request import BlockTables, Request


class ContiguousCache:
    """A range of slots per request. A slot is a block of one token: tables and counts mean what they always do.

    Who runs has all slots that it will ever need: nobody is preempted. Nothing is shared and nothing is cached.

    Invariants (checked by :mod:`kvtwin.engine.invariants`): a request's table is the beginning of its range; ranges are
    disjoint; free and reserved slots together are the pool.
    """

    swap = offload = events = None
    host_memory = ()

    def __init__(self, config: EngineConfig) -> None:
        self._allocator = config.allocator
        self._max_model_len = config.max_model_len
        self.pool = RangePool(config.num_blocks)
        self.forks = NoForks()
        self._observer = Observer()
        self.ranges: dict[Request, tuple[int, int]] = {}
        """First slot and number of slots that each running request has."""

    def observe(self, observer: Observer) -> None:
        """Tell ``observer`` from now on what requests ask for, get and let go."""
        self._observer = observer

    def slots_to_reserve(self, request: Request) -> int:
        """Slots that ``request`` is given, whatever becomes of it.

        contiguous-max: ``max_model_len``. contiguous-pow2: the prompt, and the output rounded up to a power of two.
        contiguous-oracle: what is written: the last output token's keys and values never are.
        """
        if self._allocator == "contiguous-max":
            return self._max_model_len
        if self._allocator == "contiguous-pow2":
            return min(request.num_prompt_tokens + (1 << (request.max_tokens - 1).bit_length()), self._max_model_len)
        return min(request.max_total_tokens, self._max_model_len) - 1

    def why_never_fits(self, request: Request, num_tokens: int) -> str | None:
        """Why the range of ``request`` is too large for an empty pool; None if it is not."""
        num_slots, num_usable = self.slots_to_reserve(request), self.pool.num_usable_blocks
        return f"needs {num_slots} slots in a row, pool {num_usable}" if num_slots > num_usable else None

    def find_hit(self, request: Request) -> Hit:
        """Nothing."""
        return Hit([[]], 0)

    def num_cached_tokens(self, request: Request, max_tokens: int | None = None, find: FindBlock | None = None) -> int:
        """None."""
        return 0

    def must_wait(self, hit: Hit) -> bool:
        """Never."""
        return False

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hit: Hit | None = None,
        *,
        num_reserved_blocks: int = 0,
        reserve_full_sequence: bool = False,
    ) -> BlockTables | None:
        """Reserve a range when ``request`` is admitted (``hit``), None if none is free; then its next slots."""
        if hit is not None:
            num_slots = self.slots_to_reserve(request)
            demand = Demand(num_slots, self.pool.num_free_blocks, num_reserved_blocks=num_reserved_blocks)
            self._observer.demanded(request, demand)
            if not demand.is_met:
                return None
            start = self.pool.take(num_slots)
            if start is None:
                return None
            self.ranges[request] = start, num_slots
            request.block_tables = [[]]
            request.num_slots = num_slots
        start, _ = self.ranges[request]
        (table,) = request.block_tables
        new_slots = list(range(start + len(table), start + request.num_computed_tokens + num_new_tokens))
        table += new_slots
        self._observer.granted(request, [new_slots])
        return [new_slots]

    def free(self, request: Request, *, to_host: bool = False) -> None:
        """Give the whole range of ``request`` back, if it has one; nothing goes to the host."""
        self._observer.releases(request)
        if request in self.ranges:
            self.pool.give_back(*self.ranges.pop(request))
        request.block_tables = []
        request.num_slots = 0

    def register(self, request: Request, num_tokens: int) -> None:
        """Nothing: no prefix is cached."""

    def mark_phantoms(self, request: Request) -> None:
        """Nothing: no prefix is cached."""

    def reset_prefix_cache(self) -> bool:
        """Whether no request has a range: there is nothing to forget."""
        return not self.ranges

    def start_step(self) -> None:
        """A step changes nothing by itself."""

    def take_copies(self) -> list[BlockCopy]:
        """None: nothing is shared."""
        return []

    def take_host_copies(self) -> tuple[list[HostCopy], list[HostCopy]]:
        """None: nothing is ever in the host."""
        return [], []
