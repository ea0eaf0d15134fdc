"""SGLang's own RadixCache, without a GPU: run by the oracle's Python, as `python real_cache.py < CASES > ANSWERS`.

    pip download --no-deps sglang==0.5.23; unzip sglang-0.5.23-*.whl -d DIR
    SGLANG_DIR=DIR/sglang ORACLE_PYTHON=... python -m tests.engine.sglang

It imports the files of the tree alone; whatever else they name is a mock. The clock is a counter, so that no two
instants are the same.
"""

import importlib.abc
import importlib.machinery
import itertools
import json
import os
import sys
import types
from array import array
from pathlib import Path
from unittest.mock import MagicMock

REAL = {"radix_cache", "evict_policy", "base_prefix_cache", "cache_init_params", "utils"}
"""The modules of sglang.srt.mem_cache that are imported."""


class Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every other module of SGLang, and packages that are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name in {"sglang", "sglang.srt", "sglang.srt.mem_cache"}:
            return None
        if name.startswith("sglang.srt.mem_cache.") and name.rpartition(".")[2] in REAL:
            return None
        if name.split(".")[0] in {"sglang", "msgspec", "triton", "psutil", "zmq", "sgl_kernel"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module):
        pass


def import_tree(folder):
    """The modules of the tree, from an unpacked wheel."""
    sys.meta_path.insert(0, Mocks())
    for name, path in (("sglang", ""), ("sglang.srt", "srt"), ("sglang.srt.mem_cache", "srt/mem_cache")):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(folder, path))]
        sys.modules[name] = package
    import sglang.srt.mem_cache.base_prefix_cache as base
    import sglang.srt.mem_cache.radix_cache as radix
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    return base, radix, CacheInitParams


class Allocator:
    """Takes note of the slots that the tree frees."""

    device = "cpu"

    def __init__(self):
        self.freed = []

    def free_segment(self, slots, start_pos=0):
        self.freed += slots.tolist()


class RealTree:
    """The real cache behind the operations of a case (operations.py)."""

    def __init__(self, modules, policy, page_size):
        import torch

        self.torch = torch
        self.base, self.radix, params = modules
        self.page_size = page_size
        self.allocator = Allocator()
        self.radix.time.monotonic = itertools.count(1).__next__
        self.cache = self.radix.RadixCache(params(False, None, self.allocator, page_size, eviction_policy=policy))
        self.held = {}

    def key(self, tokens):
        return self.radix.RadixKey(array("q", tokens))

    def match(self, tokens, hold=None):
        found = self.cache.match_prefix(self.base.MatchPrefixParams(key=self.key(tokens)))
        if hold is not None:
            self.cache.inc_lock_ref(found.last_device_node)
            self.held[hold] = found.last_device_node
        return found.device_prefix_len

    def insert(self, tokens, first_page, priority, num_counted, hold=None):
        slots = self.torch.arange(first_page * self.page_size, first_page * self.page_size + len(tokens))
        found = self.cache.insert(
            self.base.InsertParams(key=self.key(tokens), value=slots, priority=priority, inserted_len=num_counted)
        )
        if hold is not None:
            self.cache.inc_lock_ref(found.last_device_node)
            self.held[hold] = found.last_device_node
        return found.prefix_len

    def release(self, hold):
        self.cache.dec_lock_ref(self.held.pop(hold))

    def evict(self, num_tokens):
        self.allocator.freed.clear()
        self.cache.evict(self.base.EvictParams(num_tokens=num_tokens))
        return [slot // self.page_size for slot in self.allocator.freed[:: self.page_size]]

    def sizes(self):
        return [self.cache.evictable_size(), self.cache.protected_size()]

    def tree(self):
        def show(node):
            pages = [slot // self.page_size for slot in node.value.tolist()[:: self.page_size]]
            return [pages, node.lock_ref, node.hit_count, node.priority, children(node)]

        def children(node):
            return sorted(map(show, node.children.values()))

        return children(self.cache.root_node)


def answers(tree, operations):
    """What a tree answers to each operation, and what it looks like at the end."""
    return [[getattr(tree, name)(*arguments), tree.sizes()] for name, *arguments in operations], tree.tree()


if __name__ == "__main__":
    modules = import_tree(os.environ["SGLANG_DIR"])
    for line in sys.stdin:
        case = json.loads(line)
        tree = RealTree(modules, case["policy"], case["page_size"])
        print(json.dumps(answers(tree, case["operations"])))
