"""The block pool against a naive model of it: a list for the queue, a dict of lists for the map."""

from collections import Counter
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from kvtwin.engine import block_pool
from kvtwin.engine.block_pool import NO_KEY, NULL_BLOCK, BlockPool
from kvtwin.engine.compiled.key_table import home_of, table_length
from kvtwin.engine.compiled.machine_code import machine_code
from kvtwin.engine.pool_listener import PoolListener
from tests.parts import examples


class NaivePool:
    """Specification, section 1, written down as slowly as possible."""

    def __init__(self, num_blocks):
        self.queue = list(range(1, num_blocks))
        self.references = dict.fromkeys(range(1, num_blocks), 0)
        self.key_of = {}
        self.blocks_of = {}
        self.evicted = []

    def allocate(self, count):
        taken, self.queue = self.queue[:count], self.queue[count:]
        for block in taken:
            self.references[block] = 1
            if block in self.key_of:
                key = self.key_of.pop(block)
                self.blocks_of[key].remove(block)
                if not self.blocks_of[key]:
                    del self.blocks_of[key]
                self.evicted.append(key)
        return taken

    def touch(self, blocks):
        for block in blocks:
            if block != NULL_BLOCK:
                if self.references[block] == 0:
                    self.queue.remove(block)
                self.references[block] += 1

    def free(self, blocks):
        free_now = []
        for block in blocks:
            if block != NULL_BLOCK:
                self.references[block] -= 1
                if self.references[block] == 0:
                    free_now.append(block)
        front = [block for block in free_now if block not in self.key_of]
        back = [block for block in free_now if block in self.key_of]
        self.queue = front + self.queue + back

    def register(self, blocks, keys):
        for block, key in zip(blocks, keys, strict=True):
            self.key_of[block] = key
            self.blocks_of.setdefault(key, []).append(block)

    def lookup(self, keys, limit):
        found = []
        for key in keys[:limit]:
            if key not in self.blocks_of:
                break
            found.append(self.blocks_of[key][0])
        return found

    def reset(self):
        if any(self.references.values()):
            return False
        self.key_of, self.blocks_of = {}, {}
        return True


class Told(PoolListener):
    """Everything that a pool tells, in order; from it alone, who holds what and which block has which key."""

    def __init__(self):
        self.calls = []
        self.references = Counter()
        self.key_of = {}

    def taken(self, blocks):
        self.calls.append(("taken", list(blocks)))
        self.references.update(blocks)

    def evicted(self, block, key):
        self.calls.append(("evicted", block, key))
        assert self.key_of.pop(block) == key

    def touched(self, blocks):
        self.calls.append(("touched", list(blocks)))
        self.references.update(block for block in blocks if block != NULL_BLOCK)

    def freed(self, blocks):
        self.calls.append(("freed", list(blocks)))
        self.references.subtract(block for block in blocks if block != NULL_BLOCK)

    def registered(self, blocks, keys, part):
        self.calls.append(("registered", list(blocks), list(keys), part))
        self.key_of.update(zip(blocks, keys, strict=True))

    def cleared(self):
        self.calls.append(("cleared",))
        self.key_of.clear()


KEYS = st.sampled_from([1, 2, 3, 4, -1, -2])


class PoolMachine(RuleBasedStateMachine):
    """Holders take, share, name and free blocks; both pools must agree after every step.

    A holder is a list of block ids, each held once by it, as a request's table is.
    """

    holders = Bundle("holders")

    def __init__(self):
        super().__init__()
        self.num_blocks = 8
        self.pool = BlockPool(self.num_blocks)
        self.told = Told()
        self.pool.listeners.append(self.told)
        self.model = NaivePool(self.num_blocks)

    @rule(target=holders, share=st.floats(0, 1), with_null=st.booleans())
    def allocate(self, share, with_null):
        count = round(share * len(self.model.queue))
        taken = self.pool.allocate(count)
        assert taken == self.model.allocate(count)
        return [NULL_BLOCK, *taken] if with_null else taken

    @rule(too_many=st.integers(1, 3))
    def allocate_more_than_there_is(self, too_many):
        with pytest.raises(ValueError, match="asked for"):
            self.pool.allocate(len(self.model.queue) + too_many)

    @rule(target=holders, keys=st.lists(KEYS, max_size=4, unique=True), limit=st.integers(0, 4))
    def look_up_and_touch(self, keys, limit):
        found = [self.pool.find(key) for key in keys[:limit]]
        blocks = found[: found.index(None)] if None in found else found
        assert blocks == self.model.lookup(keys, limit)
        self.pool.touch(blocks)
        self.model.touch(blocks)
        return blocks

    @rule(target=holders, holder=holders)
    def touch_what_is_held(self, holder):
        self.pool.touch(holder)
        self.model.touch(holder)
        return list(holder)

    @rule(holder=holders, keys=st.lists(KEYS, min_size=8, max_size=8))
    def register(self, holder, keys):
        fresh = [block for block in holder if block != NULL_BLOCK and block not in self.model.key_of]
        self.pool.register(fresh, keys[: len(fresh)])
        self.model.register(fresh, keys[: len(fresh)])

    @rule(holder=consumes(holders))
    def free(self, holder):
        self.pool.free(holder[::-1])
        self.model.free(holder[::-1])

    @rule(target=holders, holder=consumes(holders), share=st.floats(0, 1))
    def free_a_part(self, holder, share):
        kept = round(share * len(holder))
        self.pool.free(holder[kept:])
        self.model.free(holder[kept:])
        return holder[:kept]

    @rule(target=holders, one=consumes(holders), other=consumes(holders), together=st.booleans())
    def free_two_in_one_call(self, one, other, together):
        if not together:
            return multiple(one, other)
        self.pool.free(one + other)
        self.model.free(one + other)
        return multiple()

    @rule(holder=st.one_of(holders, st.just([])), data=st.data())
    def free_more_often_than_held(self, holder, data):
        block = data.draw(st.integers(1, self.num_blocks - 1))
        times = self.model.references[block] + 1
        freed = data.draw(st.permutations([*set(holder) - {block}, *[block] * times]))
        with pytest.raises(ValueError, match=f"block {block} is not held"):
            self.pool.free(freed)

    @rule()
    def reset(self):
        assert self.pool.reset() is self.model.reset()

    @precondition(lambda self: any(self.model.references.values()))
    @rule()
    def reset_while_held(self):
        assert self.pool.reset() is False

    @invariant()
    def same_queue_and_references(self):
        assert self.pool.free_queue() == self.model.queue
        assert list(self.pool.ref_counts)[1:] == list(self.model.references.values())
        assert self.pool.ref_counts[NULL_BLOCK] == 0
        assert self.pool.num_free_blocks == len(self.model.queue)
        assert self.pool.num_used_blocks == sum(count > 0 for count in self.model.references.values())
        # The queue as it is walked backwards.
        previous = self.pool.arrays.previous
        backwards, block = [], previous[self.num_blocks]
        while block != self.num_blocks:
            backwards.append(block)
            block = previous[block]
        assert backwards[::-1] == self.model.queue

    @invariant()
    def same_map(self):
        assert list(self.pool.keys) == [self.model.key_of.get(block, NO_KEY) for block in range(self.num_blocks)]
        for key in (1, 2, 3, 4, -1, -2):
            assert self.pool.blocks_with_key(key) == self.model.blocks_of.get(key, [])
            assert self.pool.find(key) == next(iter(self.model.blocks_of.get(key, [])), None)
        assert self.pool.num_cached_keys == len(self.model.blocks_of)
        assert self.pool.num_hashed_blocks == len(self.model.key_of)
        assert [call[2] for call in self.told.calls if call[0] == "evicted"] == self.model.evicted
        assert self.pool.num_evictions == len(self.model.evicted)

    @invariant()
    def a_listener_could_keep_the_books(self):
        assert +self.told.references == +Counter(self.model.references)
        assert self.told.key_of == self.model.key_of


PoolMachine.TestCase.settings = examples(150, stateful_step_count=40)
TestPool = PoolMachine.TestCase


class MachineCodePool(PoolMachine):
    """The same, and every call is machine code."""

    def __init__(self):
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(block_pool, "MANY_BLOCKS", 0)

    def teardown(self):
        self.patch.undo()


MachineCodePool.TestCase.settings = examples(150, stateful_step_count=40)
TestMachineCode = pytest.mark.skipif(machine_code() is None, reason="nothing is compiled")(MachineCodePool.TestCase)


def test_a_new_pool():
    pool = BlockPool(5)
    assert (pool.free_queue(), pool.num_free_blocks, pool.num_usable_blocks) == ([1, 2, 3, 4], 4, 4)
    assert (pool.num_cached_keys, pool.num_hashed_blocks, pool.num_evictions) == (0, 0, 0)


@pytest.mark.parametrize("num_blocks", [-1, 0, 1])
def test_a_pool_of_nothing_but_the_null_block(num_blocks):
    with pytest.raises(ValueError, match="num_blocks: expected at least 2"):
        BlockPool(num_blocks)


def test_the_null_block_is_left_alone():
    pool = BlockPool(3)
    pool.touch([NULL_BLOCK, NULL_BLOCK])
    pool.free([NULL_BLOCK, NULL_BLOCK, NULL_BLOCK])
    assert (pool.ref_counts[NULL_BLOCK], pool.free_queue()) == (0, [1, 2])


def test_a_call_with_nothing_changes_nothing():
    pool = BlockPool(3)
    assert pool.allocate(0) == []
    assert pool.find(1) is None
    pool.touch([])
    pool.free([])
    pool.register([], [])
    assert pool.free_queue() == [1, 2]


def test_keys_and_blocks_that_do_not_match():
    pool = BlockPool(4)
    with pytest.raises(ValueError):
        pool.register(pool.allocate(2), [1])


def test_a_listener_is_told_in_order():
    """Evictions come before the blocks that were taken; what is refused is not told."""
    pool, told = BlockPool(4), Told()
    pool.listeners.append(told)
    blocks = pool.allocate(2)
    pool.register(blocks, [7, 8])
    pool.touch([NULL_BLOCK, 1])
    pool.free([2, 1])
    pool.free([1])
    pool.allocate(3)
    with pytest.raises(ValueError):
        pool.allocate(1)
    assert not pool.reset()
    pool.free([3])
    with pytest.raises(ValueError):
        pool.free([3])
    pool.free([1, 2])
    assert pool.reset()
    assert told.calls == [
        ("taken", [1, 2]),
        ("registered", [1, 2], [7, 8], None),
        ("touched", [NULL_BLOCK, 1]),
        ("freed", [2, 1]),
        ("freed", [1]),
        ("evicted", 2, 8),
        ("evicted", 1, 7),
        ("taken", [3, 2, 1]),
        ("freed", [3]),
        ("freed", [1, 2]),
        ("cleared",),
    ]


@pytest.mark.parametrize("evicted", [0, 1, 2])
def test_of_equal_blocks_the_oldest_that_is_left_is_found(evicted):
    """Three duplicates; whichever is evicted, the others keep their order."""
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    pool.register(blocks, [7, 7, 7])
    others = [block for block in blocks if block != blocks[evicted]]
    pool.free([blocks[evicted]])
    assert pool.blocks_with_key(7) == blocks
    assert pool.allocate(1) == [blocks[evicted]]
    assert pool.blocks_with_key(7) == others
    assert pool.find(7) == others[0]
    assert (pool.num_cached_keys, pool.num_hashed_blocks) == (1, 2)
    pool.register([blocks[evicted]], [7])
    assert pool.blocks_with_key(7) == [*others, blocks[evicted]]


def test_keys_that_fall_together_are_told_apart():
    """Many keys with one home in the key table, put there and evicted in every order, against a dict."""
    num_blocks = 40
    mask = table_length(num_blocks) - 1
    keys = [key for key in range(1, 10**6) if home_of(key, mask) in (mask, 0)][: num_blocks - 1]
    random = Random(1)
    for _ in range(50):
        pool = BlockPool(num_blocks)
        blocks = pool.allocate(num_blocks - 1)
        pool.register(blocks, keys)
        random.shuffle(blocks)
        expected = {pool.keys[block]: block for block in blocks}
        pool.free(blocks)
        for block in blocks:
            assert pool.allocate(1) == [block]
            expected = {key: other for key, other in expected.items() if other != block}
            assert [pool.find(key) for key in keys] == [expected.get(key) for key in keys]
            assert pool.find.all(keys) == [expected.get(key) for key in keys]
