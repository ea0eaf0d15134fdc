"""Arrival times that are dates, or that count in different units; lengths and times that cannot be meant."""

import json

import pytest

from kvtwin.workloads import WorkloadError, open_workload
from kvtwin.workloads.time_units import SECOND_NS

NOW_S = 1_764_000_000
DAY = 86_400


def mooncake(*times, **fields):
    return [json.dumps({"timestamp": time, "input_length": 5, "output_length": 4} | fields) for time in times]


@pytest.mark.parametrize(("unit", "per_s"), [(1.0, 1), (0.001, 1000), (1e-6, 10**6)])
def test_dates_count_from_the_first_arrival(write, unit, per_s):
    path = write(*mooncake(*(NOW_S * per_s + per_s * second for second in (7, 9, 8))))
    workload = open_workload(path, time_unit_ns=round(unit * SECOND_NS))
    assert [record.arrival_ns for record in workload] == [0, SECOND_NS, 2 * SECOND_NS]
    assert (workload.first_arrival_ns, workload.last_arrival_ns) == (0, 2 * SECOND_NS)
    assert workload.warnings == ("arrivals are dates: they count from the first one",)


def test_other_times_stay(write):
    workload = open_workload(write(*mooncake(40_000, 50_000)))
    assert [record.arrival_ns for record in workload] == [40 * SECOND_NS, 50 * SECOND_NS]
    assert workload.warnings == ()


@pytest.mark.parametrize("unit_ns", [10**3, 10**6])
@pytest.mark.parametrize(("first", "second"), [(10**3, 10**6), (10**6, 10**3), (1, 10**3)])
def test_rows_that_mix_clocks_are_refused_whatever_the_unit(write, unit_ns, first, second):
    """Dates in seconds, milliseconds, microseconds."""
    path = write(*mooncake(NOW_S * first, (NOW_S + 1) * first, (NOW_S + 2) * second, (NOW_S + 3) * first))
    if NOW_S * max(first, second) * unit_ns > 2**63:
        pattern = "expected at most|expected a time"  # beyond the clock
    elif NOW_S * min(first, second) * unit_ns < DAY * SECOND_NS:
        return  # less than a day after 0: nobody can tell
    else:
        pattern = f"{path}:3: rows count time in different units"
    with pytest.raises(WorkloadError, match=pattern):
        open_workload(path, time_unit_ns=unit_ns)


def test_a_long_pause_is_no_other_clock(write):
    path = write(*mooncake(0, 5, 3 * DAY * 1000, 200 * DAY * 1000))
    assert len(open_workload(path)) == 4


def test_absurd_lengths_and_times_are_told(write):
    rows = [*mooncake(0), *mooncake(1, output_length=2_000_000_000), *mooncake(2, input_length=9_000_000)]
    path = write(*rows, *mooncake(3, output_length=5_000_000), *mooncake(1000 * 800 * DAY))
    assert open_workload(path).warnings == (
        f"{path}:3: prompt of 9,000,000 tokens, more than any model takes",
        f"{path}:2: output of 2,000,000,000 tokens, more than any model takes (and 1 more above 4,000,000)",
        "the last request arrives 2.2 years after the start: look at the unit of the times",
    )


def test_rows_that_may_mix_clocks_are_told_where_a_pause_would_look_the_same(write):
    """Milliseconds and microseconds from 0."""
    times = [*range(0, 50_000, 1000), *range(50_000_000, 60_000_000, 1_000_000)]
    assert open_workload(write(*mooncake(*times))).warnings == (
        "nothing arrives from 49 to 50,000 s: look at the unit of the times",
    )
    assert open_workload(write(*mooncake(*range(0, 60_000, 1000)))).warnings == ()
