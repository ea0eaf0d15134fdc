"""The capacity curve of a workload as plain data: points, the sizes of servers, the ceiling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvtwin.experiments.display.progress import followed
from kvtwin.experiments.errors import UserError
from kvtwin.workloads.prefixes.capacity_curve import CapacityCurve
from kvtwin.workloads.prefixes.chains import Chain, prefix_chain
from kvtwin.workloads.prefixes.optimal_eviction import OptimalEviction
from kvtwin.workloads.prefixes.sampled_curve import SampledCurve
from kvtwin.workloads.workload import Workload

_GOOD_SHARE = 0.9
"""Of the possible hits: the point that is worth a line of its own."""

_LINE_DECADES, _LINE_POINTS = 4, 64
"""What a picture shows."""

_ROUND_SIZES = tuple(digit * 10**power for power in range(2, 10) for digit in (1, 2, 5))


@dataclass(frozen=True)
class Mark:
    """A size that a server would have; no blocks if it would not start."""

    name: str
    num_blocks: int | None


def curve_facts(
    workload: Workload,
    block_size: int,
    max_model_len: int,
    sizes: list[int],
    marks: list[Mark],
    share: float | None,
    *,
    with_line: bool = False,
) -> dict[str, Any]:
    """Everything that ``kvtwin curve`` prints; exact, or estimated from a ``share`` of the blocks.

    ``with_line`` adds, as ``line``, points close enough for a picture. UserError: nothing is known about prefixes.
    """
    chains = _Chains(workload, block_size, max_model_len)
    curve = _Exact(chains) if share is None else _Estimated(chains, share)
    if not chains.num_known:
        raise UserError(f"{workload.path}: no prefix information: the hit rate cannot be known at any size")
    rate_per_block = block_size / chains.queried_tokens

    def point(num_blocks: int) -> dict[str, Any]:
        hits = curve.hits(num_blocks - 1)  # the null block caches nothing
        rates = {name: number * rate_per_block for name, number in hits.items()}
        return {"blocks": num_blocks, "hit_tokens": round(hits["hit_rate"] * block_size)} | rates

    return {
        "trace": str(workload.path),
        "block_size": block_size,
        "num_requests": chains.num_served,
        "num_refused": chains.num_refused,
        "num_requests_unknown_prefix": chains.num_served - chains.num_known,
        "sample": share,
        "queried_tokens": chains.queried_tokens,
        "distinct_blocks": curve.num_distinct_blocks,
        "ceiling_hit_rate": curve.hits(curve.num_distinct_blocks)["hit_rate"] * rate_per_block,
        "blocks_for_90_percent_of_hits": curve.capacity_for(_GOOD_SHARE) + 1,
        "points": [point(size) for size in sizes or _default_sizes(curve.num_distinct_blocks)],
        "marks": [
            {"name": mark.name} | (point(mark.num_blocks) if mark.num_blocks else {"blocks": None}) for mark in marks
        ],
    } | ({"line": [point(size) for size in _line_sizes(curve.num_distinct_blocks)]} if with_line else {})


class _Exact:
    """The curve, and beside it the hits under clairvoyant eviction, in blocks."""

    def __init__(self, chains: Iterable[Chain]) -> None:
        chains = list(chains)
        curve = CapacityCurve(chains)
        self.num_distinct_blocks = curve.num_distinct_blocks
        self.capacity_for = curve.capacity_for
        self._curve, self._optimal = curve, OptimalEviction(chains)

    def hits(self, capacity_blocks: int) -> dict[str, float]:
        return {
            "hit_rate": self._curve.hit_blocks(capacity_blocks),
            "optimal_hit_rate": self._optimal.hit_blocks(capacity_blocks),
        }


class _Estimated:
    """The curve from a sample, and its standard error, in blocks."""

    def __init__(self, chains: Iterable[Chain], share: float) -> None:
        curve = self._curve = SampledCurve(chains, share)
        self.num_distinct_blocks = curve.num_distinct_blocks
        self.capacity_for = curve.capacity_for

    def hits(self, capacity_blocks: int) -> dict[str, float]:
        hits, error = self._curve.hit_blocks(capacity_blocks)
        return {"hit_rate": hits, "hit_rate_standard_error": error}


class _Chains:
    """The chains of a workload's requests that a server would take, counted on the way."""

    def __init__(self, workload: Workload, block_size: int, max_model_len: int) -> None:
        self._workload = workload
        self._block_size = block_size
        self._max_model_len = max_model_len
        self.queried_tokens = self.num_served = self.num_refused = self.num_known = 0

    def __iter__(self) -> Iterator[Chain]:
        for record in followed(self._workload, "reading", "requests"):
            if record.output_tokens < 1 or record.prompt_tokens >= self._max_model_len:
                self.num_refused += 1
                continue
            self.num_served += 1
            self.queried_tokens += record.prompt_tokens
            self.num_known += record.knows_prefix
            yield prefix_chain(record, self._block_size)


def _line_sizes(distinct_blocks: int) -> list[int]:
    """Sizes in equal ratios, over as many powers of ten as there is something to see, past what holds everything."""
    most = max(2 * distinct_blocks, 10)
    least = max(most // 10**_LINE_DECADES, 2)
    ratio = (most / least) ** (1 / _LINE_POINTS)
    return sorted({round(least * ratio**index) for index in range(_LINE_POINTS + 1)})


def _default_sizes(distinct_blocks: int) -> list[int]:
    """Round sizes up to the first that holds everything."""
    sizes = [size for size in _ROUND_SIZES if size <= distinct_blocks]
    return [*sizes[-12:], next((size for size in _ROUND_SIZES if size > distinct_blocks), _ROUND_SIZES[-1])]
