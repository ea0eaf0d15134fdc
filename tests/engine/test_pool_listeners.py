"""What hangs on the one list of a pool, and that nothing does where nobody asked."""

import pytest

from kvtwin.engine.block_pool import NULL_BLOCK
from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.pool_listener import PoolListener
from tests.cases.engine_harness import Engine

WITH_PARTS = (CacheGroupSpec("full_attention", 8), CacheGroupSpec("sliding_window", 4, 8))


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({}, []),
        ({"async_scheduling": True}, []),
        ({"allocator": "contiguous-max", "block_size": 1, "enable_prefix_caching": False, "max_model_len": 20}, []),
        ({"preemption_mode": "swap", "num_swap_blocks": 4}, []),
        ({"enable_kv_cache_events": True}, ["KVEventLog"]),
        ({"num_offload_blocks": 4}, ["OffloadTier"]),
        ({"kv_cache_metrics": True}, ["BlockMetrics"]),
        ({"cache_groups": WITH_PARTS}, []),
    ],
)
def test_only_what_was_asked_for_listens(config, names):
    engine = Engine(40, **config)
    engine.serve(12, 4)
    assert [type(listener).__name__ for listener in engine.pool.listeners] == names


class Books(PoolListener):
    """How often each block is held, and which were evicted."""

    def __init__(self, num_blocks):
        self.holders = [0] * num_blocks
        self.evicted_blocks = []

    def taken(self, blocks):
        self._count(blocks, 1)

    def touched(self, blocks):
        self._count(blocks, 1)

    def freed(self, blocks):
        self._count(blocks, -1)

    def evicted(self, block, key):
        self.evicted_blocks.append(block)

    def _count(self, blocks, change):
        for block in blocks:
            if block != NULL_BLOCK:
                self.holders[block] += change


@pytest.mark.parametrize("groups", [(), WITH_PARTS, (CacheGroupSpec("sliding_window", 4, 6),)])
def test_the_books_of_a_listener_are_those_of_the_pool(groups):
    """Under pressure, with preemptions, hits and evictions."""
    engine = Engine(
        14 * max(1, len(groups)), block_size=4, cache_groups=groups, max_num_batched_tokens=16, max_num_seqs=8
    )
    books = Books(engine.pool.num_blocks)
    engine.pool.listeners.append(books)
    shared = engine.fresh(9)
    for index in range(6):
        engine.add(f"r{index}", [*shared, *engine.fresh(3 * index)], 12)
    while engine.core.has_work():
        engine.iterate()
        assert books.holders == list(engine.pool.ref_counts)
    assert len(books.evicted_blocks) == engine.pool.num_evictions > 0
