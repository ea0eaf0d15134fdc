"""Hits at every size: of one cache, exact or estimated, and of those of replicas behind a router."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import hypot
from typing import Protocol

from kvtwin.experiments.display.progress import followed
from kvtwin.sim.cluster.destinations import Destinations
from kvtwin.workloads.prefixes.capacity_curve import CapacityCurve
from kvtwin.workloads.prefixes.chains import Chain, prefix_chain
from kvtwin.workloads.prefixes.optimal_eviction import OptimalEviction
from kvtwin.workloads.prefixes.sampled_curve import SampledCurve
from kvtwin.workloads.workload import Workload


class Cache(Protocol):
    """Hits at every size, in blocks."""

    num_distinct_blocks: int
    """Blocks that hold everything ever cached."""

    def hit_blocks(self, capacity_blocks: int) -> float:
        """Those of LRU eviction."""

    def hits(self, capacity_blocks: int) -> dict[str, float]:
        """The same and what stands beside it, by name."""

    def capacity_for(self, share: float) -> int:
        """Fewest blocks with this share of the hits that are possible at all."""


@dataclass(frozen=True)
class Replicas:
    """Equal caches, and who gives out the requests."""

    count: int
    router: str
    destinations: Callable[[], Destinations]
    """A router that starts anew."""


STANDARD_ERROR = "hit_rate_standard_error"


class BehindRouter:
    """The caches of replicas, all of one size, and beside them one cache as large as all together."""

    def __init__(
        self, chains: Iterable[tuple[int, Chain]], num_replicas: int, make: Callable[[Iterable[Chain]], Cache]
    ) -> None:
        """``chains`` are gone through once per cache."""
        self._caches = [make(chain for replica, chain in chains if replica == number) for number in range(num_replicas)]
        self._one = make(chain for _, chain in chains)
        self.num_distinct_blocks = max(cache.num_distinct_blocks for cache in self._caches)

    def hit_blocks(self, capacity_blocks: int) -> float:
        return sum(cache.hit_blocks(capacity_blocks) for cache in self._caches)

    def hits(self, capacity_blocks: int) -> dict[str, float]:
        parts = [cache.hits(capacity_blocks) for cache in self._caches]
        total = {name: sum(part[name] for part in parts) for name in parts[0]}
        if STANDARD_ERROR in total:
            total[STANDARD_ERROR] = hypot(*(part[STANDARD_ERROR] for part in parts))
        return total | {"one_cache_hit_rate": self._one.hit_blocks(capacity_blocks * len(parts))}

    def capacity_for(self, share: float) -> int:
        wanted = share * self.hit_blocks(self.num_distinct_blocks)
        return bisect_left(range(self.num_distinct_blocks), wanted, key=self.hit_blocks)


class Exact:
    """The curve, and beside it the hits under clairvoyant eviction, in blocks."""

    def __init__(self, chains: Iterable[Chain]) -> None:
        chains = list(chains)
        curve = CapacityCurve(chains)
        self.num_distinct_blocks = curve.num_distinct_blocks
        self.capacity_for = curve.capacity_for
        self.hit_blocks = curve.hit_blocks
        self._optimal = OptimalEviction(chains)

    def hits(self, capacity_blocks: int) -> dict[str, float]:
        return {
            "hit_rate": self.hit_blocks(capacity_blocks),
            "optimal_hit_rate": self._optimal.hit_blocks(capacity_blocks),
        }


class Estimated:
    """The curve from a sample, and its standard error, in blocks."""

    def __init__(self, chains: Iterable[Chain], share: float) -> None:
        curve = self._curve = SampledCurve(chains, share)
        self.num_distinct_blocks = curve.num_distinct_blocks
        self.capacity_for = curve.capacity_for

    def hit_blocks(self, capacity_blocks: int) -> float:
        return self._curve.hit_blocks(capacity_blocks)[0]

    def hits(self, capacity_blocks: int) -> dict[str, float]:
        hits, error = self._curve.hit_blocks(capacity_blocks)
        return {"hit_rate": hits, STANDARD_ERROR: error}


class Chains:
    """The chains of a workload's requests that a server would take, each with the replica it is sent to.

    Requests are counted on the way, anew each time. Those that are refused are sent somewhere too.
    """

    def __init__(
        self, workload: Workload, block_size: int, max_model_len: int, replicas: Replicas | None = None
    ) -> None:
        self._workload = workload
        self._block_size = block_size
        self._max_model_len = max_model_len
        self._replicas = replicas
        self.queried_tokens = self.num_served = self.num_refused = self.num_known = 0

    def __iter__(self) -> Iterator[tuple[int, Chain]]:
        self.queried_tokens = self.num_served = self.num_refused = self.num_known = 0
        destinations = self._replicas.destinations() if self._replicas else None
        for record in followed(self._workload, "reading", "requests"):
            replica = destinations.of(record) if destinations else 0
            if record.output_tokens < 1 or record.prompt_tokens >= self._max_model_len:
                self.num_refused += 1
                continue
            self.num_served += 1
            self.queried_tokens += record.prompt_tokens
            self.num_known += record.knows_prefix
            yield replica, prefix_chain(record, self._block_size)
