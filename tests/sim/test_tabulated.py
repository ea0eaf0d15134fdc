"""Tables of a step's parts: between their sizes, beyond them, and what they must never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.decode_attention import DecodeAttention
from kvtwin.sim.step_shape import StepShape
from kvtwin.sim.tabulated import (
    Curve,
    StepTables,
    Surface,
    TabulatedStepTime,
    is_rising,
    rising,
    rising_both_ways,
)
from tests.parts import examples

TABLES = StepTables(
    tokens=Curve([1, 10, 100], [1000, 1000, 1900]),
    sampled=Curve([1, 11], [50, 150]),
    decode=Surface([1, 3], [1, 101], [[0, 1000], [0, 3000]]),
    prefill=Surface([1, 101], [1, 51], [[0, 50], [0, 5000]]),
)
MODEL = TabulatedStepTime("made-up", TABLES, {"source": "a test"})


def test_between_two_sizes_times_lie_on_a_line():
    assert TABLES.tokens.at(55) == pytest.approx(1450)
    assert TABLES.decode.at(2, 51) == pytest.approx(1000)


def test_the_last_line_goes_on_and_the_first_time_holds_below():
    assert TABLES.tokens.at(200) == pytest.approx(2900)
    assert TABLES.tokens.at(0) == 1000
    assert TABLES.decode.at(5, 201) == pytest.approx(10_000)


def test_a_step_that_decodes_is_the_sum_of_three_parts():
    assert MODEL.duration_ns(StepShape(3, 3, 0, 303, 0, 3)) == 1000 + 70 + 3000


def test_context_is_divided_between_prompts_and_sequences_that_decode():
    """A chunk of 51 tokens after 100: its tokens see 126 keys in the mean; the rest is the others' context."""
    step = StepShape(3, 2, 51, 151 + 102, 51 * 100 + 51 * 26, 2)
    assert step.decode_context_tokens == pytest.approx(102)
    expected = TABLES.tokens.at(53) + TABLES.sampled.at(2) + TABLES.decode.at(2, 51) + TABLES.prefill.at(51, 126)
    assert MODEL.duration_ns(step) == round(expected)


def test_several_prompts_are_taken_to_be_equally_long():
    """Two prompts of 10 tokens beside one sequence with 30."""
    assert StepShape(3, 1, 20, 50, 2 * 55, 3).decode_context_tokens == pytest.approx(30)


def test_drafts_leave_the_context_to_what_decodes():
    assert StepShape(2, 2, 6, 100, 150, 8).decode_context_tokens == 100


def test_what_tables_lack_is_added():
    model = TabulatedStepTime(
        "m", TABLES, {}, decode_attention=DecodeAttention(1.5, 5.0, 38), sampling_ns_per_token=100
    )
    step = StepShape(3, 2, 51, 151 + 102, 51 * 100 + 51 * 26, 2)
    longer = TABLES.decode.at(2, 1.5 * 51) - TABLES.decode.at(2, 51)
    assert model.duration_ns(step) - MODEL.duration_ns(step) == round(200 + longer)
    assert model.describe()["sampling_ns_per_token"] == 100


def test_an_empty_step_takes_no_time():
    assert MODEL.duration_ns(StepShape(0, 0, 0, 0, 0, 0)) == 0


@given(times=st.lists(st.floats(0, 1e9), min_size=1, max_size=20))
@examples(50)
def test_rising_times_never_fall_and_risen_ones_stay(times):
    risen = rising(times)
    assert is_rising(risen)
    assert rising(risen) == risen
    assert rising(sorted(times)) == sorted(times)


@given(table=st.lists(st.lists(st.integers(0, 1000), min_size=4, max_size=4), min_size=1, max_size=5))
@examples(50)
def test_a_table_can_be_made_to_fall_neither_way(table):
    risen = rising_both_ways(table)
    assert all(is_rising(row) for row in risen)
    assert all(is_rising(column) for column in zip(*risen, strict=True))
