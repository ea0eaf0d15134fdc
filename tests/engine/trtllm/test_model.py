"""The small model against the values that TensorRT-LLM's own tests expect, and its invariants on random operations.

Sources: ``evictionPolicyTest.cpp`` and ``kvCacheManagerTest.cpp`` of NVIDIA/TensorRT-LLM; inputs and values only.
"""

import pytest

from tests.engine.trtllm.model import DEVICE, HOST, Model, OutOfBlocksError
from tests.engine.trtllm.model_blocks import retention_of_blocks
from tests.engine.trtllm.operations import answers, random_case

UNSET = None


@pytest.mark.parametrize(
    ("tokens_per_block", "num_tokens", "ranges", "expected"),
    [
        (64, 256, [(0, 64, 80), (64, 128, 50)], [80, 50, UNSET, UNSET]),
        (32, 127, [(0, 63, 80), (63, 127, 30)], [80, 80, 30, 30]),
        (32, 128, [(0, 1, 80), (1, 2, 5)], [80, UNSET, UNSET, UNSET]),
        (256, 192, [(0, 128, 80)], [80]),
        (64, 192, [(0, 65, 80), (65, 129, 30)], [80, 80, 30]),
        (64, 256, [(0, 64, 80), (129, None, 50)], [80, UNSET, UNSET, 50]),
        (64, 256, [(0, 64, 80), (66, 67, 50)], [80, UNSET, UNSET, UNSET]),
        (64, 256, [(127, 193, 80)], [UNSET, UNSET, 80, 80]),
        (64, 32, [(127, 193, 80)], [UNSET]),
        (64, 128, [(1, None, 80)], [UNSET, 80]),
    ],
)
def test_a_block_takes_the_range_of_its_first_token(tokens_per_block, num_tokens, ranges, expected):
    found = retention_of_blocks([(*given, None) for given in ranges], num_tokens, tokens_per_block)
    assert found == [UNSET if priority is UNSET else (priority, None) for priority in expected]


@pytest.mark.parametrize("ranges", [[(0, 64), (63, 128)], [(-1, 64)], [(0, None), (64, 128)]])
def test_ranges_that_make_no_sense(ranges):
    with pytest.raises(ValueError, match="range"):
        retention_of_blocks([(*given, 50, None) for given in ranges], 256, 64)


def ended(model, sequence_id, tokens, ranges=(), **more):
    """A sequence that runs and ends: its table, its hit."""
    added = model.add_sequence(sequence_id, tokens, ranges, **more)
    model.remove_sequence(sequence_id)
    return added.table, added.hit_tokens


def kept(priority, duration_ms=None):
    return [(0, None, priority, duration_ms)]


def two_of_eight(first, second):
    """Eight device and four host blocks of two tokens; all but two are held, these hold a token and were released."""
    model = Model(8, 4, 2)
    for sequence_id, ranges in enumerate([first, second]):
        model.add_sequence(sequence_id, [sequence_id, 0], ranges)
    for sequence_id in range(2, 8):
        model.add_sequence(sequence_id, [sequence_id, 0])
    return model


def next_victim(model):
    return model.add_sequence(99, [99]).table, [move[0] for move in model.moves]


def test_of_equal_priority_the_block_released_first_is_taken_first():
    model = two_of_eight([], [])
    model.remove_sequence(1)
    model.remove_sequence(0)
    assert [model.add_sequence(sequence_id, [9]).table for sequence_id in (10, 11)] == [[1], [0]]


def test_a_low_priority_is_taken_first_and_is_not_offloaded():
    model = two_of_eight([], kept(5))
    model.remove_sequence(0)
    model.remove_sequence(1)
    assert next_victim(model) == ([1], [])
    assert model.add_sequence(100, [99]).moves == [("offload", 0, 0)]


def test_of_80_and_5_the_5_is_taken_first():
    model = two_of_eight(kept(80), kept(5))
    model.remove_sequence(0)
    model.remove_sequence(1)
    assert next_victim(model)[0] == [1]


@pytest.mark.parametrize(("now_ms", "priority"), [(0, 80), (1, 35), (2, 35)])
def test_a_duration_ends(now_ms, priority):
    model = two_of_eight(kept(80, 1), [])
    model.remove_sequence(0)
    model.refresh(now_ms)
    assert [block.priority for block in model.free[DEVICE]] == [priority]


@pytest.mark.parametrize(("now_ms", "front"), [(5, 1), (9, 0)])
def test_a_duration_runs_from_the_release(now_ms, front):
    model = two_of_eight(kept(80, 3), kept(50, 8))
    model.refresh(5)
    model.remove_sequence(0)
    model.remove_sequence(1)
    model.refresh(now_ms)
    assert next_victim(model)[0] == [front]


def test_reuse():
    model = Model(8, 0, 4)
    added = model.add_sequence(0, range(9))
    assert (added.table, added.hit_tokens) == ([0, 1, 2], 0)
    for token in (9, 10):
        assert model.add_token(0, token) is None
    model.remove_sequence(0)
    added = model.add_sequence(1, range(9))
    assert (added.table, added.hit_tokens) == ([0, 1, 3], 8)
    for token in (9, 10):
        model.add_token(1, token)
    model.remove_sequence(1)
    first, second = model.add_sequence(2, range(10)), model.add_sequence(3, range(11))
    assert (first.table, first.hit_tokens) == ([0, 1, 2], 9)
    assert (second.table, second.hit_tokens) == ([0, 1, 4], 8)
    model.remove_sequence(2)
    model.remove_sequence(3)
    first, second = model.add_sequence(4, range(5)), model.add_sequence(5, [*range(10), 11])
    assert (first.table, first.hit_tokens) == ([0, 5], 4)
    assert (second.table, second.hit_tokens) == ([0, 1, 4], 10)


def test_block_priority():
    model = Model(4, 0, 4)
    model.add_sequence(0, range(8), [(0, 4, 90, None), (4, 8, 10, None)])
    model.add_sequence(1, range(8, 16))
    model.remove_sequence(0)
    model.remove_sequence(1)
    ended(model, 2, range(16, 24), kept(20))
    assert ended(model, 3, range(8, 16))[1] == 4
    assert model.add_sequence(4, range(8)).hit_tokens == 4
    assert model.add_sequence(5, range(16, 24)).hit_tokens == 0


@pytest.mark.parametrize(
    ("kept_0", "kept_1", "hit_tokens"),
    [
        pytest.param((90, 5), (5, 5), 11, id="newer test"),
        pytest.param((5, 90), (90, 5), 0, id="inputs of the older test, which expects 8: its queue held leaves only"),
    ],
)
def test_decode_block_priority(kept_0, kept_1, hit_tokens):
    model = Model(8, 0, 4)
    for sequence_id, (prompt, decode) in enumerate([kept_0, kept_1]):
        model.add_sequence(sequence_id, range(12 * sequence_id, 12 * sequence_id + 12), kept(prompt), (decode, None))
        assert model.add_token(sequence_id, 0) == 4 * sequence_id + 3
    model.remove_sequence(0)
    model.remove_sequence(1)
    ended(model, 2, range(24, 36))
    assert model.add_sequence(3, range(12)).hit_tokens == hit_tokens


def test_timed_eviction():
    model = Model(8, 0, 4)
    ended(model, 0, range(12), kept(80, 10))
    ended(model, 1, range(12, 24), kept(50))
    model.refresh(50)
    ended(model, 2, [1] * 12)
    assert model.add_sequence(3, range(12, 24)).hit_tokens == 11


@pytest.mark.parametrize(
    ("num_blocks", "hit_tokens"),
    [
        pytest.param(9, 8, id="newer test"),
        pytest.param(8, 4, id="blocks of the older test, which expects 8: its queue held leaves only"),
    ],
)
def test_decode_timed_eviction(num_blocks, hit_tokens):
    model = Model(num_blocks, 0, 4)
    for sequence_id, ranges, decode in [(0, kept(50), (50, None)), (1, [], (100, 20))]:
        model.add_sequence(sequence_id, [1 - sequence_id, *range(1, 12)], ranges, decode)
        model.store_context(sequence_id)
        for _ in range(3):
            model.add_token(sequence_id, 0)
        model.remove_sequence(sequence_id)
    model.refresh(50)
    ended(model, 2, [0] * 8)
    assert model.add_sequence(3, range(12)).hit_tokens == hit_tokens


def test_a_block_on_the_host_with_a_child_on_the_device():
    model = Model(4, 4, 4)
    ended(model, 0, range(12))
    ended(model, 1, [1, *range(1, 12)])
    assert model.moves == [("offload", 2, 0), ("offload", 1, 1)]
    assert model.add_sequence(2, range(4)).hit_tokens == 3
    model.store_context(2)
    for token in (4, 5, 6, 7, 0, 0):
        model.add_token(2, token)
    model.remove_sequence(2)
    assert model.add_sequence(3, [*range(8), 0, 0]).hit_tokens == 9


def test_a_leaf_of_high_priority_below_an_offloaded_block():
    model = Model(4, 1, 4)
    model.add_sequence(0, range(4))
    model.store_context(0)
    for token in range(4, 12):
        model.add_token(0, token)
    first, middle, last = model.sequences[0].table
    middle.priority = 75
    assert model.add_sequence(1, range(100, 104)).table == [3]
    model.store_context(1)
    model.remove_sequence(0)
    for token in range(104, 108):
        model.add_token(1, token)
    assert (last.parent, last.level) == (middle, HOST)
    assert [block.slot for block in model.sequences[1].table] == [3, 2]
    model.add_token(1, 108)
    assert (last.parent, first.level) == (None, HOST)


def test_the_source_of_a_copy_is_passed_over_until_it_is_copied():
    model = Model(4, 0, 4)
    ended(model, 0, range(9), [(0, 4, 5, None)])
    added = model.add_sequence(1, [0, 1, 9])
    assert (added.table, added.hit_tokens, added.moves) == ([3], 2, [("copy", DEVICE, 0, 3, 2)])


def test_the_source_of_a_copy_is_taken_if_nothing_else_is_free():
    model = Model(2, 1, 4)
    ended(model, 0, range(8))
    assert model.add_sequence(1, [9]).moves == [("offload", 1, 0)]
    added = model.add_sequence(2, [0, 1, 9])
    assert (added.table, added.hit_tokens) == ([0], 2)
    assert added.moves == [("offload", 0, 0), ("copy", HOST, 0, 0, 2)]


def test_too_few_blocks_change_nothing():
    model = Model(4, 0, 4)
    ended(model, 0, [1, 1, 2, 3])
    ended(model, 1, [2, *range(1, 12)])
    assert model.add_sequence(2, [2, *range(1, 12)]).hit_tokens == 11
    model.add_token(2, 0)
    before = model.num_free(), model.tree(), list(model.events)
    with pytest.raises(OutOfBlocksError):
        model.add_sequence(3, [42])
    assert before == (model.num_free(), model.tree(), model.events)
    assert list(model.sequences) == [2]


def check(model, settings):
    """Each slot belongs to one block, free or held; what is held lies on the device; the tree is whole."""
    held = [block for sequence in model.sequences.values() for block in sequence.table]
    assert all(block.num_holders == held.count(block) and block.level == DEVICE for block in held)
    assert all(block.num_holders == 0 for free in model.free for block in free)
    everything = {*held, *model.free[DEVICE], *model.free[HOST]}
    for level, number in enumerate([settings["num_device_blocks"], settings["num_host_blocks"]]):
        assert sorted(block.slot for block in everything if block.level == level) == list(range(number))
        assert all(block.level == level for block in model.free[level])
    for block in everything:
        assert (block.parent is None) == (block.tokens == ())
        assert all(child.parent is block and child in everything for child in block.children)
        assert not block.children or len(block.tokens) == settings["tokens_per_block"]
        assert len({child.tokens for child in block.children}) == len(block.children)


@pytest.mark.parametrize("seed", range(25))
def test_invariants(seed):
    case = random_case(seed)
    model = Model(**case.settings)
    stored = set()
    for *_, events in answers(model, case):
        check(model, case.settings)
        for kind, prefix, *_ in events:
            if kind == "stored":
                assert prefix not in stored
                stored.add(prefix)
            elif kind == "removed":
                stored.remove(prefix)
            elif kind == "updated":
                assert prefix in stored
    assert stored == {block.prefix() for free in model.free for block in free if block.parent} | {
        block.prefix() for sequence in model.sequences.values() for block in sequence.table if block.parent
    }
