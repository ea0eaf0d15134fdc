"""The calibrated step-time model."""

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.calibrated import CalibratedStepTime
from kvtwin.sim.step_shape import StepShape

FILE = {
    "model": "calibrated",
    "decode": {"base_ns": {1: 1000, 2: 1100, 8: 2300}, "padded_up_to": 8, "context_token_ns": 2.5},
    "prefill": {
        "base_ns": {1: 900, 64: 1000, 128: 3000},
        "context_token_ns": 1,
        "pair_ns": 0.25,
        "sequence_ns": 10,
        "sampled_token_ns": 7,
    },
    "measured": {"device": "cpu", "decode_median_error": 0.02},
}


def changed(**changes):
    """The file's model with ``part__key=value`` changed; None takes the key away."""
    data = deepcopy(FILE)
    for name, value in changes.items():
        *parts, key = name.split("__")
        place = data
        for part in parts:
            place = place[part]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return data


def shape_of(sequences):
    """Sums over sequences of (tokens computed before, tokens of the step, whether they are a prompt's, samples)."""
    prefills = [(before, now) for before, now, is_prefill, _ in sequences if is_prefill]
    return StepShape(
        num_sequences=len(sequences),
        decode_sequences=len(sequences) - len(prefills),
        prefill_tokens=sum(now for _, now in prefills),
        context_tokens=sum(before + now for before, now, *_ in sequences),
        prefill_attention_pairs=sum(now * before + now * (now + 1) // 2 for before, now in prefills),
        sampled_tokens=sum(samples for *_, samples in sequences),
    )


def decoding(count, context_tokens):
    return StepShape(count, count, 0, context_tokens, 0, count)


def test_a_batch_is_padded_to_the_next_size_of_the_table():
    model = CalibratedStepTime(FILE)
    assert model.duration_ns(decoding(1, 101)) == 1252  # 252.5 on top, half to even
    assert model.duration_ns(decoding(3, 0)) == model.duration_ns(decoding(8, 0)) == 2300
    assert isinstance(model.duration_ns(decoding(3, 1)), int)


def test_bases_are_interpolated_where_batches_are_not_padded():
    model = CalibratedStepTime(changed(decode__padded_up_to=0))
    assert [model.duration_ns(decoding(count, 0)) for count in (1, 2, 5, 8)] == [1000, 1100, 1700, 2300]


def test_batches_above_the_largest_padded_one_are_interpolated():
    model = CalibratedStepTime(changed(decode__base_ns={1: 1000, 2: 1100, 8: 2300, 18: 3300}))
    assert [model.duration_ns(decoding(count, 0)) for count in (7, 8, 9, 13, 18)] == [2300, 2300, 2400, 2800, 3300]


@pytest.mark.parametrize("padded_up_to", [0, 2, 8])
def test_the_last_slope_goes_on_above_the_table(padded_up_to):
    model = CalibratedStepTime(changed(decode__padded_up_to=padded_up_to))
    assert model.duration_ns(decoding(10, 0)) == 2700


def test_one_size_stands_for_all():
    model = CalibratedStepTime(changed(decode__base_ns={4: 50}, decode__padded_up_to=4))
    assert [model.duration_ns(decoding(count, 0)) for count in (1, 4, 100)] == [50, 50, 50]


def test_prompt_tokens_beside_decoding_sequences():
    sequences = [(100, 1, False, True), (10, 31, True, False)]
    expected = 950 + (101 + 41) * 1 + 0.25 * (31 * 10 + 31 * 16) + 2 * 10 + 7  # 32 tokens: 900 + 100 * 31 / 63
    model = CalibratedStepTime(FILE)
    assert model.duration_ns(shape_of(sequences)) == max(round(expected - 950 + 900 + 3100 / 63), 1000 + 355)


def test_prompt_tokens_do_not_make_a_decode_step_shorter():
    model = CalibratedStepTime(changed(decode__base_ns={1: 10_000}, decode__padded_up_to=1))
    assert model.duration_ns(shape_of([(100, 1, False, True), (0, 1, True, True)])) == 10_000 + 255


def test_an_empty_step_takes_no_time():
    assert CalibratedStepTime(FILE).duration_ns(StepShape(0, 0, 0, 0, 0, 0)) == 0


def test_description_says_what_was_measured():
    described = CalibratedStepTime(FILE).describe()
    assert described["decode_base_ns"] == "1: 1000, 2: 1100, 8: 2300"
    assert described["prefill_pair_ns"] == 0.25
    assert described["measured_device"] == "cpu"


nanoseconds = st.floats(0, 1e15) | st.integers(0, 10**15)
tables = st.dictionaries(st.integers(1, 5000), nanoseconds, min_size=1, max_size=6).map(
    lambda table: dict(zip(sorted(table), sorted(table.values()), strict=True))
)
files = st.builds(
    lambda decode, padded, slope, prefill, costs: changed(
        decode={
            "base_ns": decode,
            "padded_up_to": [0, *decode][padded % (1 + len(decode))],
            "context_token_ns": slope,
        },
        prefill={
            "base_ns": prefill,
            **dict(zip(("context_token_ns", "pair_ns", "sequence_ns", "sampled_token_ns"), costs, strict=True)),
        },
    ),
    tables,
    st.integers(0, 6),
    nanoseconds,
    tables,
    st.tuples(*[nanoseconds] * 4),
)
prefills = st.tuples(st.integers(0, 10**6), st.integers(1, 10**5), st.just(True), st.booleans())
decodes = st.tuples(st.integers(1, 10**6), st.just(1), st.just(False), st.just(True))
steps = st.lists(prefills | decodes, min_size=1, max_size=8)


@given(files, steps, st.data())
def test_a_step_that_grows_takes_no_less(data, step, draw):
    """More sequences, more tokens of a prompt, more context, one more token sampled; far beyond the tables too."""
    model = CalibratedStepTime(data)
    index = draw.draw(st.integers(0, len(step) - 1))
    before, now, is_prefill, samples = step[index]
    grown = [[*step, draw.draw(prefills | decodes)], [*step], [*step], [*step]]
    grown[1][index] = (before + draw.draw(st.integers(0, 10**6)), now, is_prefill, samples)
    grown[2][index] = (before, now, is_prefill, True)
    if is_prefill:
        grown[3][index] = (before, now + draw.draw(st.integers(0, 10**5)), True, samples)
    duration_ns = model.duration_ns(shape_of(step))
    assert duration_ns >= 0
    for larger in grown:
        assert model.duration_ns(shape_of(larger)) >= duration_ns


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode": None}, "decode: expected, but missing"),
        ({"decode": 3}, "decode: expected a mapping, got 3"),
        ({"decode__padded_up_to": None}, "decode.padded_up_to: expected, but missing"),
        ({"decode__padded_up_to": 3}, "decode.padded_up_to: expected 0 or a size of base_ns, got 3"),
        ({"decode__padded_up_to": True}, "expected 0 or a size of base_ns, got True"),
        ({"prefill__pair_s": 1}, "prefill.pair_s: unknown, expected only base_ns, context_token_ns, pair_ns"),
        ({"prefill__pair_ns": "1"}, "prefill.pair_ns: expected a number of nanoseconds, got '1'"),
        ({"prefill__pair_ns": True}, "prefill.pair_ns: expected a number"),
        ({"prefill__pair_ns": -1}, "prefill.pair_ns: expected a number of nanoseconds from 0 to"),
        ({"prefill__pair_ns": float("nan")}, "from 0 to 1e"),
        ({"prefill__pair_ns": 1e300}, "from 0 to 1e"),
        ({"decode__base_ns": {}}, "decode.base_ns: expected a mapping of sizes"),
        ({"decode__base_ns": [1]}, "decode.base_ns: expected a mapping of sizes"),
        ({"decode__base_ns": {0: 1}}, "whole numbers from 1 as sizes, got 0"),
        ({"decode__base_ns": {1.5: 1}}, "whole numbers from 1 as sizes, got 1.5"),
        ({"decode__base_ns": {1: None}}, "decode.base_ns: 1: expected a number"),
        ({"prefill__base_ns": {1: 5, 9: 4}}, "prefill.base_ns: expected times that do not fall, got 4.0 at 9 after 5"),
        ({"measured__date": [1]}, r"measured.date: expected text or a number, got \[1\]"),
    ],
)
def test_bad_files_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        CalibratedStepTime(changed(**changes))
