"""What routers see comes late: metrics at the interval, KV events at the end of a step and after the lag."""

import pytest

from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.cluster.router import Router
from kvtwin.workloads.request_record import RequestRecord
from tests.sim.cluster.replicas import server
from tests.sim.test_serving import FixedStepTime

MS = 1_000_000


class Watcher(Router):
    """Sends everything to the only replica, and notes what it sees of each prompt when."""

    def __init__(self, interval_ns=50 * MS):
        self.interval_ns, self.cached, self.metrics, self.firsts = interval_ns, [], [], []

    def begin(self, view):
        (self.events,), (self.scraped,) = view.follow_caches(), view.scrape(self.interval_ns)
        view.tell_first_tokens(lambda name, replica: self.firsts.append((name, replica, view.now_ns / MS)))

    def choose(self, request, view):
        self.cached.append(self.events.num_cached_tokens(request.record, view.now_ns))
        self.metrics.append(tuple(self.scraped.at(view.now_ns)))
        return 0


def run(arrivals_ms, lag_ms=0.0, usable=40, step_ms=10, prompt=64, output=3, **config):
    """Requests of one prompt at these times; steps of 10 ms."""
    clock, router = Clock(), Watcher()
    engine = server(clock, usable=usable, step_time=FixedStepTime(step_ms * MS), **config)
    records = [
        RequestRecord(
            request_id=str(n),
            arrival_ns=round(at * MS),
            prompt_tokens=prompt,
            output_tokens=output,
            token_ids=list(range(prompt)),
        )
        for n, at in enumerate(arrivals_ms)
    ]
    Cluster(clock, [engine], router, event_lag_ns=round(lag_ms * MS)).run(records)
    return router


@pytest.mark.parametrize("asynchronous", [False, True])
def test_events_are_seen_at_the_end_of_the_step(asynchronous):
    router = run([0, 5, 9.9, 10.1, 40], async_scheduling=asynchronous)
    assert router.cached == [0, 0, 0, 64, 64]


def test_events_are_seen_after_the_lag():
    assert run([0, 10.1, 29.9, 30.1], lag_ms=20).cached == [0, 0, 0, 64]


def test_removed_blocks_are_known_to_be_gone():
    clock, router = Clock(), Watcher()
    engine = server(clock, usable=6, step_time=FixedStepTime(10 * MS))
    prompts = [range(64), range(100, 164), range(64), range(100, 164)]
    records = [
        RequestRecord(request_id=str(n), arrival_ns=n * 1000 * MS, prompt_tokens=64, output_tokens=2, token_ids=list(p))
        for n, p in enumerate(prompts)
    ]
    recorder = Cluster(clock, [engine], router).run(records)
    assert router.cached == [0, 0, 16, 16]  # each prompt and its output take five blocks of six
    assert list(recorder.requests.hit_tokens) == router.cached
    assert list(recorder.requests.cached_tokens) == router.cached


def test_metrics_are_those_of_the_last_output_before_the_last_reading():
    router = run([0, 12, 49, 51, 99, 101], output=30, prompt=16, async_scheduling=False)
    zero = (0, 0, 0.0)
    assert router.metrics[:3] == [zero, zero, zero]  # read at 0
    assert router.metrics[3] == router.metrics[4] != zero  # read at 50
    waiting, running, usage = router.metrics[3]
    assert (waiting, running) == (1, 2)  # the third arrived at 49 and was seen waiting when the output of 50 came
    assert 0 < usage < 1
    assert router.metrics[5][:2] == (1, 4)


def test_first_tokens_are_told_once():
    assert run([0, 12]).firsts == [("0", 0, 10.0), ("1", 0, 40.0)]
    assert run([0, 12], async_scheduling=False).firsts == [("0", 0, 10.0), ("1", 0, 30.0)]
