"""The checker of SGLang's scheduler, cache and tree."""

from __future__ import annotations

from collections import Counter

from kvtwin.engine.executor import Step
from kvtwin.engine.invariants import InvariantError
from kvtwin.engine.request import RequestStatus
from kvtwin.engine.sglang.radix_tree import RadixNode
from kvtwin.engine.sglang.scheduler import SglangScheduler


class SglangChecker:
    """Checks everything from scratch; costs time in proportion to the cache."""

    def __init__(self, scheduler: SglangScheduler) -> None:
        self._scheduler = scheduler

    def check(self) -> None:
        """Raise InvariantError for the first contradiction between two calls of the scheduler."""
        scheduler = self._scheduler
        cache = scheduler.kv_cache
        _require(
            sorted(map(id, (*scheduler.running, *scheduler.waiting))) == sorted(map(id, scheduler.live.values())),
            "a live request is not in exactly one of running and waiting",
        )
        _require(set(cache.holdings) == set(scheduler.running), "not those who run hold pages")
        _require(all(one.status is RequestStatus.RUNNING for one in scheduler.running), "somebody runs who does not")
        parts = [one for one in (*scheduler.decoding, *scheduler.prefilled, scheduler.chunked) if one]
        _require(len(set(parts)) == len(parts), "a request is in two phases")
        _require({one for one in parts if not one.is_finished} <= set(scheduler.running), "a phase of no running one")
        try:
            cache.tree.check()
        except AssertionError as error:
            raise InvariantError(f"the tree contradicts itself: {error}") from None
        self._check_pages()

    def _check_pages(self) -> None:
        """Every page is free, in the tree or one request's own; locks are those of the holdings."""
        cache = self._scheduler.kv_cache
        owned = Counter(cache.pool.free_pages)
        owned.update(page for node in cache.tree.nodes() for page in node.pages)
        locks: Counter[RadixNode] = Counter()
        for request, holding in cache.holdings.items():
            table, path = holding.pages.tolist(), holding.node.path()
            held = [page for node in path for page in node.pages]
            _require(table[: holding.num_tree_pages] == held, f"{request}: its table is not its path in the tree")
            _require(len(table) * cache.page_tokens >= request.num_computed_tokens, f"{request}: tokens without a page")
            owned.update(table[holding.num_tree_pages :])
            locks.update(path)
        _require(owned == Counter(range(1, cache.pool.num_usable_blocks + 1)), "a page is lost, or has two owners")
        _require(all(node.num_locks == locks[node] for node in cache.tree.nodes()), "locks are not those of requests")

    def check_step(self, step: Step) -> None:
        """Raise InvariantError if a step contradicts itself."""
        _require(len(set(step.requests)) == len(step.requests), "a request is in a step twice")
        _require(all(count > 0 for count in step.num_tokens), "a request is in a step without a token")
        _require(sum(step.num_tokens) == step.total_tokens, "the total of a step is wrong")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
