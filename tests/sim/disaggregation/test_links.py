"""Links: times by hand, and what holds of any transfers."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.clock import Clock
from kvtwin.sim.disaggregation.links import FairLinks
from tests.parts import examples


def finish_times(transfers, *, bytes_per_s=1e9, latency_ns=0):
    """When each of ``(start, source, destination, bytes)`` is done, if a byte takes a nanosecond."""
    clock = Clock()
    links, done = FairLinks(clock, bytes_per_s=bytes_per_s, latency_ns=latency_ns), {}

    def begin(number, source, destination, num_bytes):
        def finish():
            assert number not in done
            done[number] = clock.now_ns

        links.send(source, destination, num_bytes, finish)

    for number, (start, *transfer) in enumerate(transfers):
        clock.call_at(start, lambda _, arguments=(number, *transfer): begin(*arguments))
    clock.run()
    assert links.num_active == 0
    return [done[number] for number in range(len(transfers))]


@pytest.mark.parametrize(
    ("transfers", "times"),
    [
        ([(5, 0, 9, 100)], [105]),
        ([(0, 0, 8, 100), (0, 1, 9, 100)], [100, 100]),  # links of their own
        ([(0, 0, 8, 100), (0, 0, 9, 100)], [200, 200]),  # one source
        ([(0, 0, 9, 100), (0, 1, 9, 100)], [200, 200]),  # one destination
        ([(0, 0, 8, 100), (50, 0, 9, 100)], [150, 200]),  # 50 alone, 50 at half; then the rest alone
        ([(0, 0, 8, 300), (0, 0, 9, 100)], [400, 200]),
        # The first shares a link with one, the third with another: each goes at half, though more would be there.
        ([(0, 0, 8, 100), (0, 0, 9, 100), (0, 1, 9, 100)], [200, 200, 200]),
        ([(0, 0, 8, 0)], [0]),
    ],
)
def test_times_by_hand(transfers, times):
    assert finish_times(transfers) == times


def test_latency_comes_first_and_occupies_nothing():
    assert finish_times([(0, 0, 8, 100), (100, 0, 9, 10)], latency_ns=40) == [140, 150]


def test_an_infinite_bandwidth_leaves_the_latency():
    assert finish_times([(3, 0, 8, 10**12), (3, 0, 8, 1)], bytes_per_s=inf, latency_ns=7) == [10, 10]


@pytest.mark.parametrize("settings", [{"bytes_per_s": 0.0, "latency_ns": 0}, {"bytes_per_s": 1.0, "latency_ns": -1}])
def test_what_cannot_be(settings):
    with pytest.raises(ValueError, match="expected"):
        FairLinks(Clock(), **settings)


TRANSFERS = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 2), st.integers(3, 5), st.integers(0, 300)), min_size=1, max_size=12
)


@given(TRANSFERS, st.integers(0, 50))
@examples(60)
def test_no_transfer_is_faster_than_its_link_and_no_link_is_idle_longer_than_it_may(transfers, latency_ns):
    times = finish_times(transfers, latency_ns=latency_ns)
    for (start, _, _, num_bytes), end in zip(transfers, times, strict=True):
        assert end >= start + latency_ns + num_bytes
    for link in {end for _, source, destination, _ in transfers for end in (source, destination)}:
        mine = [(each, end) for each, end in zip(transfers, times, strict=True) if link in each[1:3]]
        # A link never moves more than a byte per nanosecond.
        first = min(start for (start, *_), _ in mine) + latency_ns
        assert max(end for _, end in mine) - first >= sum(num_bytes for (*_, num_bytes), _ in mine) - len(mine)
    # All together take no longer than one after the other.
    last_start = max(start for start, *_ in transfers) + latency_ns
    assert max(times) <= last_start + sum(num_bytes for *_, num_bytes in transfers) + len(transfers)
