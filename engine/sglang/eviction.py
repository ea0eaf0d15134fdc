"""Which leaf of SGLang's radix tree is evicted first (``--radix-eviction-policy``): the one with the least key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

PROTECTED_HITS = 2
"""Hits from which on ``slru`` protects a node (SGLang's default of ``protected_threshold``)."""


class Evictable(Protocol):
    """What a policy looks at. Times are ticks of the tree's clock."""

    created: int
    last_access: int
    num_hits: int
    priority: int


EvictionKey: TypeAlias = Callable[[Evictable], tuple[int, ...]]


def least_recently_used(node: Evictable) -> tuple[int, ...]:
    """``lru``, the default."""
    return (node.last_access,)


def most_recently_used(node: Evictable) -> tuple[int, ...]:
    """``mru``."""
    return (-node.last_access,)


def least_frequently_used(node: Evictable) -> tuple[int, ...]:
    """``lfu``: fewest hits, then the least recently used."""
    return node.num_hits, node.last_access


def segmented(node: Evictable) -> tuple[int, ...]:
    """``slru``: those with few hits before those with more, each in the order of their last use."""
    return int(node.num_hits >= PROTECTED_HITS), node.last_access


def first_in(node: Evictable) -> tuple[int, ...]:
    """``fifo``: the oldest. A node that was split off is as old as the split."""
    return (node.created,)


def last_in(node: Evictable) -> tuple[int, ...]:
    """``filo``: the newest."""
    return (-node.created,)


def least_important(node: Evictable) -> tuple[int, ...]:
    """``priority``: the least priority, then the least recently used."""
    return node.priority, node.last_access


EVICTION_POLICIES: Mapping[str, EvictionKey] = {
    "lru": least_recently_used,
    "lfu": least_frequently_used,
    "slru": segmented,
    "fifo": first_in,
    "filo": last_in,
    "mru": most_recently_used,
    "priority": least_important,
}
"""Without ``tlru``, which SGLang's own ``RadixCache`` cannot do."""
