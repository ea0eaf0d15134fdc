"""KV events, beside the parity cases: what one allocation publishes, and in which order."""

from kvtwin.engine.cache_group_spec import CacheGroupSpec
from kvtwin.engine.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from tests.cases.engine_harness import Engine


def engine(usable, **config):
    return Engine(usable, block_size=4, enable_kv_cache_events=True, **config)


def test_what_is_evicted_is_told_before_what_is_stored():
    """A prompt of four blocks evicts all that the two before it cached in a pool of five."""
    server = engine(5)
    server.serve(8)
    server.serve(12)
    server.cache.events.take()
    server.serve(16)
    assert [type(event) for event in server.cache.events.take()] == [BlockRemoved] * 4 + [BlockStored]


def test_a_stored_event_holds_all_blocks_of_an_allocation():
    server = engine(9)
    prompt = server.fresh(10)
    server.serve(prompt)
    (event,) = server.cache.events.take()
    assert (len(event.block_hashes), event.parent_block_hash, event.block_size) == (2, None, 4)
    assert event.token_ids == tuple(prompt[:8])
    assert (event.group_idx, event.kv_cache_spec_kind, event.sliding_window) == (0, "full_attention", None)


def test_a_hit_tells_nothing_and_what_follows_names_its_parent():
    server = engine(9)
    prompt = server.fresh(12)
    server.serve(prompt[:9])
    (first,) = server.cache.events.take()
    server.serve([*prompt, 0])
    (second,) = server.cache.events.take()
    assert second.parent_block_hash == first.block_hashes[-1]
    assert second.token_ids == tuple(prompt[8:12])


def test_hashes_are_published_as_their_low_64_bits():
    server = engine(9)
    request = server.add("a", 5)
    server.run()
    (event,) = server.cache.events.take()
    block_hash = server.scheduler.keys.hash_of_key(request.block_keys[0])
    assert event.block_hashes == (int.from_bytes(block_hash, "big") % 2**64,)


def test_a_window_publishes_tokens_of_blocks_that_were_given_no_key():
    """Window 8, prompt 33: two of eight blocks; a block that outputs fill has none."""
    server = engine(63, cache_groups=(CacheGroupSpec("sliding_window", 4, 8),))
    server.serve(33, 5)
    events = server.cache.events.take()
    assert [(len(event.block_hashes), len(event.token_ids)) for event in events] == [(2, 32), (0, 4)]
    assert [event.extra_keys for event in events] == [(None, None), None]
    assert {event.sliding_window for event in events} == {8}


def test_extra_keys_are_published_without_tags():
    server = engine(9)
    server.serve(9, salt="pepper")
    (event,) = server.cache.events.take()
    assert event.extra_keys == (("pepper",), None)


def test_a_reset_clears_all():
    server = engine(9)
    server.serve(9)
    server.cache.events.take()
    assert server.scheduler.reset_prefix_cache()
    assert server.cache.events.take() == [AllBlocksCleared()]


def test_the_part_of_a_block_is_told_behind_the_block():
    """Blocks of 8, hashes of 4: the prompt of 16 has a second key up to 12, evicted with its block."""
    groups = (CacheGroupSpec("full_attention", 8), CacheGroupSpec("sliding_window", 4, 8))
    server = engine(8, cache_groups=groups)
    server.serve(16)
    events = [event for event in server.cache.events.take() if event.group_idx == 0]
    assert [(len(event.block_hashes), event.block_size, len(event.token_ids)) for event in events] == [
        (2, 8, 16),
        (1, 4, 4),
    ]
