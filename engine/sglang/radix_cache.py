"""SGLang's radix cache as requests use it: they adopt a prefix, compute pages of their own, and leave these there."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from kvtwin.engine.cache_groups import FindBlock
from kvtwin.engine.request import Request
from kvtwin.engine.sglang.eviction import EVICTION_POLICIES
from kvtwin.engine.sglang.page_pool import PagePool
from kvtwin.engine.sglang.radix_tree import RadixNode, RadixTree


@dataclass(slots=True)
class Holding:
    """What a running request holds.

    Invariant: the first ``num_tree_pages`` of its pages are those from the root to ``node``, which the request has
    locked once; the others are its own.
    """

    pages: array[int]
    """Those of its tokens, in order."""
    node: RadixNode
    num_tree_pages: int
    num_inserted_pages: int = 0
    """Pages that it has inserted before: hits of them are counted once."""


class RadixCache:
    """The tree, the pool and what each running request holds of both."""

    events = None
    """KV events are not modelled."""
    swap = None
    offload = None
    """Nor is a cache in host memory."""

    def __init__(self, num_pages: int, page_tokens: int, eviction_policy: str) -> None:
        self.tree = RadixTree(EVICTION_POLICIES[eviction_policy])
        self.page_tokens = page_tokens
        self.pool = PagePool(num_pages, page_tokens, self.tree)
        self.holdings: dict[Request, Holding] = {}
        self._names: dict[Request, array[int]] = {}

    def names(self, request: Request, num_tokens: int) -> array[int]:
        """The keys of the whole pages among the first ``num_tokens``, all of which are known."""
        num_pages = num_tokens // self.page_tokens
        keys = request.block_keys
        if len(keys) < num_pages:
            request.content.extend_keys(keys, num_pages)
        names = self._names.setdefault(request, array("q"))
        if len(names) < num_pages:
            names.extend(keys[len(names) : num_pages])
        return names if len(names) == num_pages else names[:num_pages]

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._names.pop(request, None)

    def find_hit(self, request: Request) -> tuple[RadixNode, int]:
        """Where the longest cached prefix ends, short of the last known token, and how many tokens it has."""
        node = self.tree.match(self.names(request, request.num_tokens - 1))
        return node, sum(len(one.pages) for one in node.path()) * self.page_tokens

    def touch(self, request: Request) -> None:
        """Count what is cached of a waiting request as used now."""
        self.tree.match(self.names(request, request.num_tokens))

    def num_cached_tokens(self, request: Request, max_tokens: int | None = None, find: FindBlock | None = None) -> int:
        """Leading tokens of ``request`` that the device could serve now. Nothing counts as used."""
        names = self.names(request, min(request.num_tokens - 1, max_tokens or request.num_tokens))
        return self.tree.num_cached(names) * self.page_tokens

    def adopt(self, request: Request, node: RadixNode) -> None:
        """Let ``request`` hold the prefix that ends at ``node``."""
        self.tree.lock(node)
        pages = array("q")
        for one in node.path():
            pages += one.pages
        self.holdings[request] = Holding(pages, node, len(pages))
        request.num_slots = len(pages) * self.page_tokens

    def num_missing_pages(self, request: Request, num_tokens: int) -> int:
        """Pages that ``request`` lacks for its first ``num_tokens``."""
        return -(-num_tokens // self.page_tokens) - len(self.holdings[request].pages)

    def extend(self, request: Request, num_tokens: int) -> array[int]:
        """Give ``request`` pages for its first ``num_tokens``; return the new ones."""
        pages = self.pool.take(self.num_missing_pages(request, num_tokens))
        self.holdings[request].pages.extend(pages)
        request.num_slots += len(pages) * self.page_tokens
        return pages

    def publish(self, request: Request, num_tokens: int) -> None:
        """Let others hit the whole pages of the first ``num_tokens``, and hold them by the tree from now on.

        Pages that the tree had already are freed. The prompt ends a node, so that an output can go without it; its
        pages count as a little more important than the output's.
        """
        names, holding, priority = self.names(request, num_tokens), self.holdings[request], request.priority
        pages = holding.pages[: len(names)]
        num_known, _ = self.tree.insert(names, pages, priority=priority, num_counted=holding.num_inserted_pages)
        holding.num_inserted_pages = max(holding.num_inserted_pages, len(names))
        num_prompt_pages = request.num_prompt_tokens // self.page_tokens
        if 0 < num_prompt_pages < len(names):
            prompt = names[:num_prompt_pages], pages[:num_prompt_pages]
            self.tree.insert(*prompt, priority=priority + 1, num_counted=num_prompt_pages)
        self.pool.give_back(pages[holding.num_tree_pages : num_known])
        node = self.tree.match(names)
        held = array("q")
        for one in node.path():
            held += one.pages
        holding.pages[: len(held)] = held
        self.tree.unlock(holding.node)
        self.tree.lock(node)
        holding.node, holding.num_tree_pages = node, len(held)

    def release(self, request: Request, num_published_tokens: int = 0) -> None:
        """Let go of all that ``request`` holds, and leave the first ``num_published_tokens`` to others."""
        if num_published_tokens:
            self.publish(request, num_published_tokens)
        holding = self.holdings.pop(request)
        self.pool.give_back(holding.pages[holding.num_tree_pages :])
        self.tree.unlock(holding.node)
        request.num_slots = 0
