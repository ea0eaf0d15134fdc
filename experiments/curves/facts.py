"""The capacity curve of a workload as plain data: points, the sizes of servers, the ceiling."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvtwin.experiments.curves.caches import BehindRouter, Cache, Chains, Estimated, Exact, Replicas
from kvtwin.experiments.errors import UserError
from kvtwin.workloads.prefixes.chains import Chain
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
    replicas: Replicas | None = None,
    with_line: bool = False,
) -> dict[str, Any]:
    """Everything that ``kvtwin curve`` prints; exact, or estimated from a ``share`` of the blocks.

    With ``replicas``, sizes are those of each of them. ``with_line`` adds, as ``line``, points close enough for a
    picture. UserError: nothing is known about prefixes.
    """
    chains = Chains(workload, block_size, max_model_len, replicas)
    make: Callable[[Iterable[Chain]], Cache] = Exact if share is None else partial(Estimated, share=share)
    if replicas:
        curve: Cache = BehindRouter(list(chains) if share is None else chains, replicas.count, make)
    else:
        curve = make(chain for _, chain in chains)
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
        **({"data_parallel_size": replicas.count, "router": replicas.router} if replicas else {}),
        "ceiling_hit_rate": curve.hits(curve.num_distinct_blocks)["hit_rate"] * rate_per_block,
        "blocks_for_90_percent_of_hits": curve.capacity_for(_GOOD_SHARE) + 1,
        "points": [point(size) for size in sizes or _default_sizes(curve.num_distinct_blocks)],
        "marks": [
            {"name": mark.name} | (point(mark.num_blocks) if mark.num_blocks else {"blocks": None}) for mark in marks
        ],
    } | ({"line": [point(size) for size in _line_sizes(curve.num_distinct_blocks)]} if with_line else {})


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
