"""The pages of SGLang's KV cache: free ones in order, and how many the tree could give back."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

from kvtwin.engine.pool_listener import PoolListener
from kvtwin.engine.sglang.radix_tree import RadixTree


class PagePool:
    """Hands out free pages, the one that was freed first before others.

    Page 0 takes what padding writes and is never handed out, as in SGLang. Invariant: every other page is free, in the
    tree, or a request's own (:mod:`kvtwin.engine.sglang.invariants`).
    """

    def __init__(self, num_pages: int, page_tokens: int, tree: RadixTree) -> None:
        """``num_pages`` counts page 0 too."""
        self.num_usable_blocks = num_pages - 1
        self.page_tokens = page_tokens
        self.free_pages = deque(range(1, num_pages))
        self.listeners: list[PoolListener] = []
        """They are told nothing: what becomes of single pages is not reported."""
        self.num_evictions = 0
        self._tree = tree

    @property
    def num_free_tokens(self) -> int:
        """What can be handed out at once."""
        return len(self.free_pages) * self.page_tokens

    @property
    def num_available_tokens(self) -> int:
        """What can be handed out if the tree gives back all that nobody has locked."""
        return (len(self.free_pages) + self._tree.num_evictable_pages) * self.page_tokens

    @property
    def num_free_blocks(self) -> int:
        """Pages that no request holds, cached or not."""
        return len(self.free_pages) + self._tree.num_evictable_pages

    def take(self, num_pages: int) -> array[int]:
        """Free pages. IndexError: there are too few."""
        pop = self.free_pages.popleft
        return array("q", [pop() for _ in range(num_pages)])

    def give_back(self, pages: Sequence[int]) -> None:
        """These are free again."""
        self.free_pages.extend(pages)

    def make_room(self, num_tokens: int) -> None:
        """Evict until ``num_tokens`` are free, or there is nothing to evict."""
        missing_tokens = num_tokens - self.num_free_tokens
        if missing_tokens <= 0:
            return
        for node in self._tree.evict(-(-missing_tokens // self.page_tokens)):
            self.num_evictions += len(node.pages)
            self.give_back(node.pages)
