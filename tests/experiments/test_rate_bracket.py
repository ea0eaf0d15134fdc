"""Bisection for a rate: where it ends, with a boundary that is somewhere, nowhere or in several places."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.experiments.limits.bracket import Bracket, RateGrid

PRECISIONS = st.floats(0.001, 1)


def searched(grid, holds):
    """The bracket at the end of a search, and the steps that were tried."""
    bracket, tried = Bracket(grid), []
    while (step := bracket.next_step) is not None:
        tried.append(step)
        bracket = bracket.after(step, holds(step))
    return bracket, tried


@given(PRECISIONS, st.data())
def test_the_boundary_is_found_wherever_it_is(precision, data):
    grid = RateGrid.of_precision(1.0, precision)
    most = grid.most_steps
    boundary = data.draw(st.integers(-most, most + 1))  # the lowest step that fails
    bracket, tried = searched(grid, lambda step: step < boundary)
    assert bracket.held == (boundary - 1 if boundary > -most else None)
    assert bracket.failed == (boundary if boundary <= most else None)
    assert len(tried) == len(set(tried)) <= 4 + grid.steps_per_stride.bit_length()
    assert all(-most <= step <= most for step in tried)


@given(PRECISIONS, st.floats(1e-3, 1e3))
def test_neighbours_of_the_grid_differ_by_the_precision_at_most(precision, base):
    grid = RateGrid.of_precision(base, precision)
    assert grid.rate(1) / grid.rate(0) <= (1 + precision) * (1 + 1e-5)
    assert grid.rate(grid.most_steps) == pytest.approx(64 * base, rel=1e-5)
    assert grid.rate(-grid.most_steps) == pytest.approx(base / 64, rel=1e-5)


@given(PRECISIONS, st.integers(0, 2**32))
def test_without_order_a_step_that_held_is_still_next_to_one_that_failed(precision, seed):
    grid = RateGrid.of_precision(1.0, precision)
    random = Random(seed)
    outcomes = {step: random.random() < 0.5 for step in range(-grid.most_steps, grid.most_steps + 1)}
    bracket, _ = searched(grid, outcomes.__getitem__)
    assert bracket.held is None or outcomes[bracket.held]
    assert bracket.failed is None or not outcomes[bracket.failed]
    if bracket.held is not None and bracket.failed is not None:
        assert bracket.failed == bracket.held + 1
