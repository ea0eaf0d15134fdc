"""Which prefixes a router sent where: those that requests shared most of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtwin.workloads.prefixes.chains import Chain

MOST_PREFIXES = 16
"""How many are kept, those first that would save most in one cache that never evicts."""


@dataclass(slots=True)
class _Stretch:
    """Blocks that were new together in one prompt, and whoever has some of them."""

    first_block: int
    first_request_id: str
    requests: list[int]
    """Of each replica."""
    num_repeated_blocks: int = 0
    longest_repeat_blocks: int = 0


class RoutedPrefixes:
    """Counts, for each stretch of a prompt that was new once, the requests that each replica was sent with it."""

    def __init__(self, num_replicas: int, block_size: int) -> None:
        self._num_replicas = num_replicas
        self._block_size = block_size
        self._stretches: dict[int, _Stretch] = {}

    def add(self, replica: int, chain: Chain, request_id: str) -> None:
        """A request with this chain was sent to ``replica``."""
        first_block = 0
        for name, count in chain.runs:
            stretch = self._stretches.get(name)
            if stretch is None:
                stretch = self._stretches[name] = _Stretch(first_block, request_id, [0] * self._num_replicas)
            else:
                stretch.num_repeated_blocks += count
                stretch.longest_repeat_blocks = max(stretch.longest_repeat_blocks, count)
            stretch.requests[replica] += 1
            first_block += count

    def figures(self) -> dict[str, Any]:
        """From and to which token of which prompt, and how many requests with it each replica was sent."""
        shared = [stretch for stretch in self._stretches.values() if stretch.num_repeated_blocks]
        shared.sort(key=lambda stretch: -stretch.num_repeated_blocks)
        return {
            "routed_prefixes": [
                {
                    "from_token": stretch.first_block * self._block_size,
                    "to_token": (stretch.first_block + stretch.longest_repeat_blocks) * self._block_size,
                    "first_request_id": stretch.first_request_id,
                    "requests": stretch.requests,
                }
                for stretch in shared[:MOST_PREFIXES]
            ]
        }
