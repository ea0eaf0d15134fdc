"""Windows, chunks and several cache groups: the examples of the specification."""

import pytest

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.prefix_lookup import PrefixLookup
from kvtwin.engine.speculation import Speculation
from tests.cases.engine_harness import Engine, shape

FULL = CacheGroupSpec("full_attention", 4)


def window(window_tokens, block_size=4):
    return CacheGroupSpec("sliding_window", block_size, window_tokens)


def serving(*groups, usable=63, **config):
    return Engine(usable, cache_groups=groups, **config)


def tables(engine, name):
    return [list(table) for table in engine.requests[name].block_tables]


def test_groups_share_the_pool_and_are_freed_one_by_one():
    """The first group takes its blocks first; each is freed from its table's end, those without a key to the front."""
    engine = serving(FULL, window(64), usable=9)
    engine.add("a", 7, 2)
    engine.iterate()
    assert tables(engine, "a") == [[1, 2], [3, 4]]
    engine.scheduler.abort("a")
    assert engine.free_order() == [4, 2, 5, 6, 7, 8, 9, 1, 3]


def test_blocks_behind_the_window_are_let_go_at_the_next_allocation():
    """They have no key, so that the same allocation hands them out again."""
    engine = serving(window(5), max_num_batched_tokens=8)
    engine.add("a", 24, 6)
    seen = []
    for _ in range(3):
        engine.iterate()
        seen += tables(engine, "a")
    assert seen == [[1, 2], [0, 2, 1, 3], [0, 0, 0, 3, 1, 2]]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("window_tokens", [1, 4, 5, 8, 9])
def test_which_blocks_are_behind_the_window(window_tokens, asynchronous):
    """Those that end before the window of the last token whose output was processed."""
    engine = serving(window(window_tokens), async_scheduling=asynchronous)
    request = engine.add("a", 16, 12)
    while engine.core.has_work():
        processed = request.num_computed_tokens - request.num_tokens_in_flight
        step = engine.core.schedule_next()
        if step and step.requests:
            dead = max(0, processed - window_tokens + 1) // 4
            (table,) = tables(engine, "a")
            assert [block == 0 for block in table] == [True] * dead + [False] * (len(table) - dead)
        if engine.core.must_collect():
            engine.core.process([[0] if samples else [] for samples in engine.core.in_flight[0].samples])


@pytest.mark.parametrize(
    ("group", "needed"),
    [(window(8), 7), (CacheGroupSpec("chunked_local_attention", 4, 8), 6), (CacheGroupSpec("full_attention", 4), 50)],
)
@pytest.mark.parametrize("missing", [0, 1])
def test_what_a_long_prompt_must_find_free(group, needed, missing):
    """A prompt of 200 in steps of 16: ceil((8 - 1 + 16) / 4) + 1 blocks of a window, ceil((8 + 16) / 4) of chunks."""
    settings = {"enable_prefix_caching": False, "max_num_batched_tokens": 16, "vllm_strict": True}
    engine = serving(group, usable=needed - missing, **settings)
    engine.add("a", 200)
    assert bool(shape(engine.iterate())) == (not missing)


@pytest.mark.parametrize(
    ("prompt", "interval", "num_keys"),
    [(33, 0, 2), (33, None, 8), (65, 0, 2), (65, 32, 4), (65, 16, 8), (65, 8, 16), (4, 0, 0), (8, 0, 1)],
)
def test_which_blocks_of_a_window_are_given_keys(prompt, interval, num_keys):
    """Window 8, blocks of 4: two blocks end the prefix that the same prompt would hit, and every ``interval``-th."""
    engine = serving(window(8), prefix_cache_retention_interval=interval)
    engine.serve(prompt)
    assert engine.pool.num_hashed_blocks == num_keys


@pytest.mark.parametrize(("interval", "num_keys"), [(0, 0), (32, 1), (16, 3), (8, 7), (None, 7)])
def test_which_blocks_of_outputs_are_given_keys(interval, num_keys):
    """Seven full blocks of 30 tokens that were computed: none but those of a tail of the interval."""
    engine = serving(window(8), prefix_cache_retention_interval=interval)
    engine.serve(1, 30)
    assert engine.pool.num_hashed_blocks == num_keys


@pytest.mark.parametrize(("interval", "hits"), [(0, [0, 0, 16]), (None, [0, 16, 16])])
def test_a_shared_prefix_is_kept_once_it_was_seen_to_be_shared(interval, hits):
    """Full attention has the shared 16 tokens when the second prompt comes; so the window keeps its tail there."""
    engine = serving(FULL, window(8), prefix_cache_retention_interval=interval)
    shared = engine.fresh(16)
    assert [engine.serve(shared + engine.fresh(tail)) for tail in (17, 9, 9)] == hits


def test_blocks_of_different_sizes():
    """Sizes 4 and 8: hashes of 4, hits and cached prefixes of multiples of 8."""
    engine = serving(FULL, window(16, block_size=8), prefix_cache_retention_interval=None)
    config = engine.scheduler.config
    assert (config.hash_block_size, config.alignment_tokens) == (4, 8)
    prompt = engine.fresh(30)
    engine.serve(prompt)
    assert engine.pool.num_cached_keys == 24 // 4 + 24 // 8
    assert engine.serve(prompt[:21]) == 16


@pytest.mark.parametrize(
    ("settings", "hash_tokens"), [({}, 4), ({"prefix_match_unit": 2}, 2), ({"enable_prefix_caching": False}, 8)]
)
def test_tokens_that_a_hash_covers(settings, hash_tokens):
    config = EngineConfig(num_blocks=9, cache_groups=(FULL, window(16, block_size=8)), **settings)
    assert config.hash_block_size == hash_tokens


def test_chunks_before_the_last_are_hit_in_an_empty_cache():
    engine = serving(CacheGroupSpec("chunked_local_attention", 4, 8))
    engine.add("a", 30)
    (admission,) = engine.iterate().admitted
    assert admission.num_hit_tokens == 24
    assert admission.block_tables == [[0] * 6 + [1, 2]]


def test_every_full_block_of_a_chunk_is_given_its_key():
    engine = serving(CacheGroupSpec("chunked_local_attention", 4, 32))
    engine.serve(31)
    assert engine.pool.num_hashed_blocks == 7


def test_a_run_of_blocks_from_the_beginning_is_hit_though_shorter_than_the_window():
    engine = serving(window(12), prefix_cache_retention_interval=None)
    shared = engine.fresh(8)
    engine.serve(shared + engine.fresh(9))
    assert engine.serve(shared + engine.fresh(9)) == 8


def test_a_hit_names_only_the_blocks_that_the_window_looks_at():
    engine = serving(window(8), prefix_cache_retention_interval=None)
    prompt = engine.fresh(33)
    engine.serve(prompt)
    engine.add("b", prompt)
    (admission,) = engine.iterate().admitted
    assert admission.num_hit_tokens == 32
    assert [block == 0 for block in admission.block_tables[0]] == [True] * 6 + [False] * 3


def test_an_interval_that_keeps_states_only_where_a_chunk_ends():
    """Every 16 tokens would be kept, but the chunks of the prompt of 45 end at 40 and 45."""
    states = CacheGroupSpec("mamba", 8)
    engine = serving(states, prefix_cache_retention_interval=16)
    prompt = engine.fresh(45)
    engine.serve(prompt)
    assert engine.pool.num_hashed_blocks == 1
    assert engine.cached_prefix(prompt) == 40


def test_a_chunk_that_begins_inside_a_block_of_states_ends_with_it():
    """With another request beside it the prompt gets 3 tokens at a time; alone it may go on to the next boundaries."""
    engine = serving(CacheGroupSpec("mamba", 8), max_num_batched_tokens=64, long_prefill_token_threshold=3)
    engine.add("a", 30)
    engine.add("b", 3)
    assert [shape(engine.iterate()).get("a") for _ in range(4)] == [3, 5, 16, 6]


def dropping(*groups):
    """An engine whose hits give their last block away."""
    speculation = Speculation(method="eagle", num_speculative_tokens=1, disable_lookahead_block_hashes=True)
    return serving(*groups, speculation=speculation)


@pytest.mark.parametrize(("prompt", "ends"), [(36, [24, 28]), (39, [24, 28]), (40, [24, 28, 32, 36])])
def test_tails_that_are_kept_where_hits_give_a_block_away(prompt, ends):
    """Unit 8: the tail of 24 with one block more, and that of 32 where the prompt goes on for a unit."""
    engine = dropping(window(5), window(9, block_size=8))
    engine.add("a", prompt, 2)
    engine.core.schedule_next()
    (table, _) = tables(engine, "a")
    assert [4 * (index + 1) for index, block in enumerate(table) if engine.pool.keys[block]] == ends


def test_a_shared_prefix_is_kept_a_unit_shorter_too_where_hits_give_a_block_away():
    engine = dropping(FULL, window(8))
    shared = engine.fresh(16)
    for tail, hit in ((17, 0), (9, 0), (9, 12)):
        assert engine.serve(shared + engine.fresh(tail)) == hit
    assert engine.serve(shared[:14] + engine.fresh(9)) == 8


def test_all_give_a_block_away_anew_when_one_that_gave_none_shortens_the_hit():
    """The second group gives its block at 24 away for a hit of 20; the third allows 12, for which 16 is not there."""
    groups = (FULL, CacheGroupSpec("sliding_window", 4, 5, is_eagle_group=True), window(9))
    lookup = PrefixLookup(dropping(*groups).cache.groups)
    cached_ends = ([4, 8, 12, 16, 20, 24], [4, 8, 12, 20, 24], [4, 8, 12])
    keys = [[10 * end + group for end in (4, 8, 12, 16, 20, 24)] for group in range(3)]
    cached = {10 * end + group: end // 4 for group, ends in enumerate(cached_ends) for end in ends}
    tables, num_tokens, _ = lookup.find(keys, 20, cached.get)
    assert num_tokens == 8
    assert tables == [[1, 2], [0, 2], [1, 2]]
