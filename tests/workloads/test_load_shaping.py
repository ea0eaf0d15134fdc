from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.workloads import RequestRecord
from kvtwin.workloads.load_shaping import first_requests, scale_rate, set_request_rate


def records(*arrivals_ns):
    return [
        RequestRecord(request_id=str(index), arrival_ns=time_ns, prompt_tokens=5, output_tokens=1, think_time_ns=9)
        for index, time_ns in enumerate(arrivals_ns)
    ]


def times(shaped):
    return [record.arrival_ns for record in shaped]


def test_first_requests():
    assert times(first_requests(records(1, 2, 3), 2)) == [1, 2]
    assert times(first_requests(records(1, 2, 3), 9)) == [1, 2, 3]


@given(st.lists(st.integers(0, 2**63 - 1)), st.sampled_from([0.1, 0.5, 1.0, 1.5, 2, 3, 1e6]))
def test_scale_rate_divides_integers(arrivals_ns, rate_scale):
    assert times(scale_rate(records(*arrivals_ns), rate_scale)) == [
        Fraction(time_ns) / Fraction(str(rate_scale)) // 1 for time_ns in arrivals_ns
    ]


def test_shaping_changes_arrivals_only_and_copies():
    before = records(10, 20)
    (first, second) = scale_rate(before, 2)
    assert (first.arrival_ns, second.arrival_ns, second.think_time_ns, second.request_id) == (5, 10, 9, "1")
    assert times(before) == [10, 20]


@pytest.mark.parametrize("rate_scale", [0, -1, float("inf"), float("nan")])
def test_impossible_scales(rate_scale):
    with pytest.raises(ValueError, match="rate scale: expected a number above 0, got"):
        scale_rate(records(1), rate_scale)


@pytest.mark.parametrize(("burstiness", "cv"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (float("inf"), 0.0)])
def test_set_request_rate(burstiness, cv):
    shaped = times(set_request_rate(records(*range(4_000)), 4_000, 8.0, burstiness))
    gaps = np.diff(shaped)
    assert shaped[-1] == 500_000_000_000
    assert gaps.min() >= 0
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1, abs=1e-6)


def test_the_seed_decides():
    shaped = [times(set_request_rate(records(*range(9)), 9, 8.0, seed=seed)) for seed in (0, 0, 1)]
    assert shaped[0] == shaped[1] != shaped[2]


def test_an_infinite_rate_sends_all_at_once():
    assert times(set_request_rate(records(5, 6), 2, float("inf"))) == [0, 0]


@pytest.mark.parametrize(
    ("request_rate", "burstiness", "message"),
    [
        (0.0, 1.0, "request rate: expected more than 0 requests/s, got 0.0"),
        (1.0, 0.0, "burstiness: expected more than 0, got 0.0"),
    ],
)
def test_impossible_rates(request_rate, burstiness, message):
    with pytest.raises(ValueError) as caught:
        set_request_rate(records(1), 1, request_rate, burstiness)
    assert str(caught.value) == message
