"""Random operations on a radix tree, and our tree behind them."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

from kvtwin.engine.sglang.eviction import EVICTION_POLICIES
from kvtwin.engine.sglang.radix_tree import RadixNode, RadixTree

PAGE_SIZES = (1, 4, 16)
GOLDEN = Path(__file__).with_name("golden_trees.json.gz")
"""Cases and what SGLang's own class answered, a pair a line."""


class OurTree:
    """Our tree behind the operations of a case: of tokens, as the real one."""

    def __init__(self, policy: str, page_size: int) -> None:
        self.page_size = page_size
        self.tree = RadixTree(EVICTION_POLICIES[policy])
        self.keys: dict[tuple[int, ...], int] = {}
        self.held: dict[int, RadixNode] = {}

    def names(self, tokens: list[int]) -> array[int]:
        """A key per whole page, for all tokens up to its end."""
        ends = range(self.page_size, len(tokens) + 1, self.page_size)
        return array("q", (self.keys.setdefault(tuple(tokens[:end]), len(self.keys) + 1) for end in ends))

    def match(self, tokens, hold=None):
        node = self.tree.match(self.names(tokens))
        self._hold(node, hold)
        return sum(len(each.names) for each in node.path()) * self.page_size

    def insert(self, tokens, first_page, priority, num_counted, hold=None):
        names = self.names(tokens)
        pages = array("q", range(first_page, first_page + len(names)))
        known, node = self.tree.insert(names, pages, priority=priority, num_counted=num_counted // self.page_size)
        self._hold(node, hold)
        return known * self.page_size

    def _hold(self, node, hold):
        if hold is not None:
            self.tree.lock(node)
            self.held[hold] = node

    def release(self, hold):
        self.tree.unlock(self.held.pop(hold))

    def evict(self, num_tokens):
        nodes = self.tree.evict(-(-num_tokens // self.page_size))
        return [page for node in nodes for page in node.pages]

    def sizes(self):
        return [pages * self.page_size for pages in (self.tree.num_evictable_pages, self.tree.num_locked_pages)]

    def show(self):
        def show(node):
            children = sorted(map(show, node.children.values()))
            return [node.pages.tolist(), node.num_locks, node.num_hits, node.priority, children]

        return sorted(map(show, self.tree.root.children.values()))


def random_case(seed: int, policy: str, page_size: int, num_operations: int) -> dict:
    """Prompts that branch at random places out of a small vocabulary, locks, and evictions that come and go."""
    draw = random.Random(f"{seed}/{policy}/{page_size}")
    prompts: list[list[int]] = [[]]
    held: list[int] = []
    operations: list[list] = []
    next_page = 1
    while len(operations) < num_operations:
        stem = draw.choice(prompts[-30:])
        tokens = stem[: draw.randint(0, len(stem))] + draw.choices(range(3), k=draw.randint(0, 5 * page_size))
        prompts.append(tokens)
        hold = len(operations) if draw.random() < 0.3 else None
        kind = draw.random()
        if kind < 0.35:
            num_counted = draw.choice((0, 0, draw.randint(0, len(tokens)) // page_size * page_size))
            whole = tokens[: len(tokens) // page_size * page_size]
            operations.append(["insert", whole, next_page, draw.randint(0, 3), num_counted, hold])
            next_page += len(tokens) // page_size
        elif kind < 0.65:
            operations.append(["match", tokens, hold])
        elif kind < 0.85 and held:
            operations.append(["release", held.pop(draw.randrange(len(held)))])
            continue
        else:
            operations.append(["evict", draw.randint(0, 6 * page_size)])
            continue
        if hold is not None:
            held.append(hold)
    return {"policy": policy, "page_size": page_size, "operations": operations}


def our_answers(case: dict) -> list:
    """As ``answers`` of real_cache.py."""
    tree = OurTree(case["policy"], case["page_size"])
    rows = []
    for name, *arguments in case["operations"]:
        rows.append([getattr(tree, name)(*arguments), tree.sizes()])
        tree.tree.check()
    return [rows, tree.show()]
