"""SGLang's radix tree: runs of pages that prompts share, split where they part, evicted leaf by leaf."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvtwin.engine.sglang.eviction import EvictionKey


@dataclass(slots=True, eq=False, repr=False)
class RadixNode:
    """A run of pages behind those of its parent. Times are ticks of the tree's clock."""

    names: array[int]
    """Keys of the pages; equal keys mean equal prefixes."""
    pages: array[int]
    """Where they lie."""
    parent: RadixNode | None
    created: int
    last_access: int
    priority: int = 0
    num_hits: int = 0
    """How many requests inserted it, the first one too."""
    num_locks: int = 0
    """Running requests that use it, or nodes behind it."""
    children: dict[int, RadixNode] = field(default_factory=dict)
    """By the key of their first page."""

    def path(self) -> list[RadixNode]:
        """The nodes from behind the root down to this one."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    @property
    def is_evictable_leaf(self) -> bool:
        """Whether eviction may take it next. The root is none."""
        return not self.children and not self.num_locks and self.parent is not None


class RadixTree:
    """Cached pages by prefix. One page is the unit of everything here.

    Invariants (:meth:`check`): every node but the root holds a page; children of a node begin with different pages; a
    node has at least the locks of all its children together; ``num_evictable_pages`` and ``num_locked_pages`` count the
    pages of nodes without and with locks; ``leaves`` are the leaves without locks; a page is in one node.

    Held by ``tests/engine/sglang/test_radix_tree.py``, against the real ``RadixCache``.
    """

    def __init__(self, eviction_key: EvictionKey) -> None:
        self._eviction_key = eviction_key
        self._clock = 0
        self.root = RadixNode(array("q"), array("q"), None, created=0, last_access=0)
        self.leaves: dict[RadixNode, None] = {}
        """Those without locks, from which eviction chooses."""
        self.num_evictable_pages = 0
        self.num_locked_pages = 0

    def match(self, names: array[int]) -> RadixNode:
        """Where the longest cached prefix of ``names`` ends: the node there, split off if it went on.

        The path is as if it had been used now. The root: nothing is cached.
        """
        node = self.root
        if not names:
            return node
        now = self._tick()
        node.last_access = now
        start = 0
        while start < len(names) and (child := node.children.get(names[start])):
            child.last_access = now
            num_shared = num_equal(child.names, names, start)
            if num_shared < len(child.names):
                return self._split(child, num_shared)
            node = child
            start += num_shared
        return node

    def num_cached(self, names: array[int]) -> int:
        """Leading pages that are cached; nothing is touched or split."""
        node, start = self.root, 0
        while start < len(names) and (child := node.children.get(names[start])):
            num_shared = num_equal(child.names, names, start)
            start += num_shared
            if num_shared < len(child.names):
                break
            node = child
        return start

    def insert(
        self, names: array[int], pages: array[int], *, priority: int = 0, num_counted: int = 0
    ) -> tuple[int, RadixNode]:
        """Cache ``pages`` under ``names``; return how many of them the tree had, and the node where they end.

        It keeps its own page where it has one: the newcomer's is its caller's to free. ``num_counted`` of the pages
        were inserted by the same request before, and are not counted as hit again.
        """
        now = self._tick()
        node = self.root
        node.last_access = now
        start = 0
        while start < len(names) and (child := node.children.get(names[start])):
            child.last_access = now
            num_shared = num_equal(child.names, names, start)
            start += num_shared
            node = child if num_shared == len(child.names) else self._split(child, num_shared)
            node.priority = max(node.priority, priority)
            node.num_hits += start > num_counted
        num_known = start
        if start < len(names):
            now = self._tick()
            leaf = RadixNode(names[start:], pages[start:], node, now, now, priority, int(len(names) > num_counted))
            node.children[names[start]] = leaf
            self.num_evictable_pages += len(leaf.names)
            self._note_leaf(node)
            self._note_leaf(leaf)
            node = leaf
        return num_known, node

    def lock(self, node: RadixNode) -> None:
        """Keep ``node`` and all before it, until it is unlocked as often."""
        while node.parent is not None:
            if not node.num_locks:
                self.num_evictable_pages -= len(node.names)
                self.num_locked_pages += len(node.names)
            node.num_locks += 1
            self._note_leaf(node)
            node = node.parent

    def unlock(self, node: RadixNode) -> None:
        """Undo one :meth:`lock`. ValueError: it is not locked."""
        while node.parent is not None:
            if not node.num_locks:
                raise ValueError("unlock: a node that is not locked")
            node.num_locks -= 1
            if not node.num_locks:
                self.num_evictable_pages += len(node.names)
                self.num_locked_pages -= len(node.names)
            self._note_leaf(node)
            node = node.parent

    def evict(self, num_pages: int) -> list[RadixNode]:
        """Evict whole leaves until ``num_pages`` are free, or nothing is left to evict; return them in order.

        They may hold more than was asked for. A parent that thereby becomes a leaf is one from then on.
        """
        heap = [self._entry(leaf) for leaf in self.leaves]
        heapq.heapify(heap)
        evicted: list[RadixNode] = []
        while num_pages > 0 and heap:
            leaf = heapq.heappop(heap)[-1]
            parent = leaf.parent
            assert parent is not None
            evicted.append(leaf)
            num_pages -= len(leaf.names)
            self.num_evictable_pages -= len(leaf.names)
            del parent.children[leaf.names[0]]
            del self.leaves[leaf]
            self._note_leaf(parent)
            if parent.is_evictable_leaf:
                heapq.heappush(heap, self._entry(parent))
        return evicted

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def check(self) -> None:
        """AssertionError: an invariant does not hold."""
        pages: list[int] = []
        leaves, num_evictable, num_locked = set(), 0, 0
        for node in self.nodes():
            assert node.parent is not None
            assert len(node.names) == len(node.pages) > 0
            assert node.parent.children[node.names[0]] is node
            assert node.num_locks >= sum(child.num_locks for child in node.children.values())
            pages += node.pages
            leaves |= {node} if node.is_evictable_leaf else set()
            num_evictable += 0 if node.num_locks else len(node.names)
            num_locked += len(node.names) if node.num_locks else 0
        assert leaves == set(self.leaves)
        assert (num_evictable, num_locked) == (self.num_evictable_pages, self.num_locked_pages)
        assert len(set(pages)) == len(pages)

    def _split(self, node: RadixNode, num_pages: int) -> RadixNode:
        """Let a node of its own hold the first ``num_pages`` of ``node``, which stays what it is behind it."""
        parent, now = node.parent, self._tick()
        assert parent is not None
        head = RadixNode(
            node.names[:num_pages],
            node.pages[:num_pages],
            parent,
            now,
            now,
            node.priority,
            node.num_hits,
            node.num_locks,
        )
        parent.children[head.names[0]] = head
        del node.names[:num_pages], node.pages[:num_pages]
        node.parent = head
        head.children[node.names[0]] = node
        return head

    def _note_leaf(self, node: RadixNode) -> None:
        if node.is_evictable_leaf:
            self.leaves[node] = None
        else:
            self.leaves.pop(node, None)

    def _entry(self, leaf: RadixNode) -> tuple[tuple[int, ...], int, int, RadixNode]:
        """Among equals the one that was not used for longer goes first."""
        return self._eviction_key(leaf), leaf.last_access, leaf.created, leaf

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def num_equal(left: Sequence[int], right: Sequence[int], start: int = 0) -> int:
    """Leading items of ``left`` that ``right`` repeats from ``start`` on."""
    low, high = 0, min(len(left), len(right) - start)
    if left[:high] == right[start : start + high]:
        return high
    while high - low > 1:  # those before low are equal, and one of those from low to high is not
        middle = (low + high) // 2
        if left[low:middle] == right[start + low : start + middle]:
            low = middle
        else:
            high = middle
    return low
