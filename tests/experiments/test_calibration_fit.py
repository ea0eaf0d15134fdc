"""The fit of the calibrated step-time model to measured steps."""

from itertools import pairwise
from random import Random

import pytest

from kvtwin.experiments.calibration.fit import Calibration, MeasuredStep, calibrate
from kvtwin.sim.calibrated import CalibratedStepTime
from kvtwin.sim.step_shape import StepShape

TRUTH = {
    "model": "calibrated",
    "decode": {
        "base_ns": {1: 5_000_000, 2: 5_100_000, 4: 5_200_000, 8: 6_000_000, 16: 9_000_000},
        "padded_up_to": 8,
        "context_token_ns": 900.0,
    },
    "prefill": {
        "base_ns": {1: 9_000_000, 128: 9_500_000, 512: 20_000_000},
        "context_token_ns": 900.0,
        "pair_ns": 20.0,
        "sequence_ns": 100_000,
        "sampled_token_ns": 50_000,
    },
    "measured": {},
}


def shapes():
    """A grid of steps that only decode, of chunks of prompts, and of both."""
    for batch in (1, 2, 4, 8, 16):
        for context in (16, 128, 512, 1024, 2048):
            yield StepShape(batch, batch, 0, batch * context, 0, batch)
    for tokens in (1, 16, 32, 64, 96, 128, 160, 256, 384, 512, 700, 1024):
        for before in (0, 300, 2000):
            for decodes in (0, 4, 16):
                pairs = tokens * before + tokens * (tokens + 1) // 2
                context = before + tokens + 400 * decodes
                yield StepShape(decodes + 1, decodes, tokens, context, pairs, decodes + (before == 0))


def measured(truth, noise=0.0, repeats=1, seed=1):
    """Steps that take what ``truth`` says, and up to ``noise`` more."""
    model, draw = CalibratedStepTime(truth), Random(seed)
    return [
        MeasuredStep(shape, shape.num_sequences, model.duration_ns(shape) * (1 + noise * draw.random()))
        for _ in range(repeats)
        for shape in shapes()
    ]


def unpadded(truth):
    return {**truth, "decode": {**truth["decode"], "padded_up_to": 0}}


def test_an_exact_measurement_gives_its_coefficients_back():
    calibration = calibrate(measured(unpadded(TRUTH)))
    fitted = calibration.coefficients
    assert fitted["decode"]["base_ns"] == pytest.approx(TRUTH["decode"]["base_ns"], rel=1e-3)
    assert fitted["decode"]["context_token_ns"] == pytest.approx(900, rel=1e-3)
    for name in ("context_token_ns", "pair_ns", "sequence_ns", "sampled_token_ns"):
        assert fitted["prefill"][name] == pytest.approx(TRUTH["prefill"][name], rel=0.02), name
    assert calibration.decode_error.max < 1e-3
    assert calibration.prefill_error.max < 0.01
    assert calibration.num_shapes == len(set(shapes()))
    assert calibration.decode_error.num_shapes == round(0.3 * 25)


def test_padding_is_seen_from_the_steps():
    steps = measured(TRUTH)
    model = CalibratedStepTime(TRUTH)
    for batch, padded in ((3, 4), (5, 8), (6, 8), (11, 11)):
        shape = StepShape(batch, batch, 0, batch * 200, 0, batch)
        steps.append(MeasuredStep(shape, padded, model.duration_ns(shape)))
    calibration = calibrate(steps)
    assert calibration.coefficients["decode"]["padded_up_to"] == 8
    base_ns = {**TRUTH["decode"]["base_ns"], 11: 7_125_000}  # between 8 and 16
    assert calibration.coefficients["decode"]["base_ns"] == pytest.approx(base_ns, rel=1e-4)
    assert calibration.decode_error.max < 1e-3


def test_the_median_of_noisy_repeats_is_near_the_truth():
    calibration = calibrate(measured(unpadded(TRUTH), noise=0.4, repeats=12))
    model, truth = calibration.step_time(), CalibratedStepTime(unpadded(TRUTH))
    for shape in shapes():
        assert 0.95 < model.duration_ns(shape) / truth.duration_ns(shape) < 1.4
    assert 0 < calibration.decode_error.median <= calibration.decode_error.p90 <= calibration.decode_error.max < 0.2


def test_the_held_out_steps_are_not_fitted():
    """Steps that follow no rule are predicted worse than any fit to them could be."""
    draw = Random(3)
    steps = [step._replace(duration_ns=10 ** draw.uniform(5, 9)) for step in measured(TRUTH)]
    assert calibrate(steps).prefill_error.max > 2


def test_equal_measurements_are_fitted_equally():
    steps = measured(TRUTH, noise=0.3)
    assert calibrate(steps) == calibrate(steps)


def test_the_prediction_goes_on_beyond_the_grid():
    """Never negative, never falling, finite: whatever was measured, and however far away."""
    for seed in range(20):
        model = calibrate(measured(TRUTH, noise=5.0, seed=seed)).step_time()
        for lesser, larger in pairwise(BEYOND):
            assert 0 <= model.duration_ns(lesser) <= model.duration_ns(larger) < 10**24


BEYOND = [StepShape(n, n, 0, n * 2_000, 0, n) for n in (1, 3, 16, 17, 100, 4000)] + [
    StepShape(4001, 4000, tokens, 8_000_000 + tokens, tokens**2, 4001) for tokens in (1, 1000, 5000, 100_000)
]


def test_different_steps_of_one_kind_only():
    """A chunk of one length, one batch size: nothing tells the costs apart, and the mean is still right."""
    decode = [StepShape(4, 4, 0, 4 * context, 0, 4) for context in range(100, 110)]
    prefill = [StepShape(1, 0, 64, 64 + before, 64 * before + 2080, 1) for before in range(10)]
    steps = [MeasuredStep(shape, shape.num_sequences, 1e6) for shape in decode + prefill]
    model = calibrate(steps).step_time()
    for shape in decode + prefill:
        assert model.duration_ns(shape) == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize("num_decode", [0, 4])
def test_too_few_shapes(num_decode):
    steps = measured(TRUTH, repeats=3)
    decode = [step for step in steps if step.shape.prefill_tokens == 0][:num_decode]
    prefill = [step for step in steps if step.shape.prefill_tokens]
    with pytest.raises(ValueError, match=f"at least 5 different steps that only decode, got {num_decode}"):
        calibrate(decode + prefill)
    with pytest.raises(ValueError, match="at least 5 different steps with prompt tokens, got 0"):
        calibrate([step for step in steps if step.shape.prefill_tokens == 0])


def test_what_was_measured_goes_into_the_model():
    calibration: Calibration = calibrate(measured(TRUTH))
    assert calibration.step_time({"device": "cpu"}).describe()["measured_device"] == "cpu"
