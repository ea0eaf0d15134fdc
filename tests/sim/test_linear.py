"""The linear step-time model."""

import pytest

from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.step_shape import StepShape

STEP = StepShape(
    num_sequences=3,
    decode_sequences=2,
    prefill_tokens=100,
    context_tokens=500,
    prefill_attention_pairs=5050,
    sampled_tokens=2,
)


def test_sum_of_its_parts_rounded_once():
    model = LinearStepTime({"step_ns": 1000, "prefill_token_ns": 10, "context_token_ns": 2.001, "sequence_ns": 7})
    assert model.duration_ns(STEP) == 1000 + 1000 + 1000 + 21 + 1  # 500 * 0.001 = 0.5, with 2.0 * 500
    assert isinstance(model.duration_ns(STEP), int)


def test_pairs_count_when_asked():
    assert LinearStepTime({"prefill_pair_ns": 2}).duration_ns(STEP) == 10100


def test_no_coefficients_mean_no_time():
    assert LinearStepTime({}).duration_ns(STEP) == 0


def test_an_empty_step_takes_no_time():
    assert LinearStepTime({"step_ns": 1000}).duration_ns(StepShape(0, 0, 0, 0, 0, 0)) == 0


@pytest.mark.parametrize(
    ("coefficients", "message"),
    [
        ({"step_s": 1}, "unknown coefficient 'step_s'; known: step_ns"),
        ({"step_ns": "1"}, "step_ns must be a number"),
        ({"step_ns": True}, "step_ns must be a number"),
        ({"sequence_ns": -1}, "at least 0"),
        ({"sequence_ns": float("nan")}, "finite"),
    ],
)
def test_bad_coefficients_are_named(coefficients, message):
    with pytest.raises(ValueError, match=message):
        LinearStepTime(coefficients)


def test_description_gives_the_coefficients_back():
    described = LinearStepTime({"step_ns": 5}).describe()
    assert described["model"] == "linear"
    assert described["step_ns"] == 5.0
    assert described["context_token_ns"] == 0.0
