"""The range pool against a naive model of it: one flag per block."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvtwin.engine.contiguous.range_pool import RangePool


def runs(flags):
    """Where the runs of set flags begin and end; flag 0 is the null block's."""
    found, start = [], None
    for block, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = block
        elif not flag and start is not None:
            found.append((start, block))
            start = None
    return found


class RangeMachine(RuleBasedStateMachine):
    """Holders take and give back ranges; the model finds the best fit by looking at every block."""

    def __init__(self):
        super().__init__()
        self.num_blocks = 24
        self.pool = RangePool(self.num_blocks)
        self.free = [False] + [True] * (self.num_blocks - 1)
        self.held = []

    @rule(count=st.integers(1, 10))
    def take(self, count):
        fitting = [(end - start, start) for start, end in runs(self.free) if end - start >= count]
        taken = self.pool.take(count)
        assert taken == (min(fitting)[1] if fitting else None)
        if taken is not None:
            self.free[taken : taken + count] = [False] * count
            self.held.append((taken, count))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data):
        start, count = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.give_back(start, count)
        self.free[start : start + count] = [True] * count

    @rule(start=st.integers(0, 24), count=st.integers(1, 5))
    def give_back_what_is_not_held(self, start, count):
        wrong = start == 0 or start + count > self.num_blocks or any(self.free[start : start + count])
        if wrong:
            with pytest.raises(ValueError, match="not all held"):
                self.pool.give_back(start, count)

    @invariant()
    def both_agree(self):
        assert self.pool.free_ranges() == runs(self.free)
        assert self.pool.num_free_blocks == sum(self.free)
        assert self.pool.num_used_blocks == sum(count for _, count in self.held)


TestRangePool = RangeMachine.TestCase


def test_the_smallest_range_that_is_large_enough_is_taken():
    pool = RangePool(21)
    for start, count in ((1, 6), (7, 1), (8, 3), (11, 1), (12, 9)):
        assert pool.take(count) == start
    for start, count in ((1, 6), (8, 3), (12, 9)):
        pool.give_back(start, count)
    assert pool.take(3) == 8
    assert pool.take(4) == 1
    assert pool.take(10) is None, "11 are free, but not in a row"
    assert pool.free_ranges() == [(5, 7), (12, 21)]


def test_a_pool_has_room_for_something():
    with pytest.raises(ValueError, match="num_blocks"):
        RangePool(1)
