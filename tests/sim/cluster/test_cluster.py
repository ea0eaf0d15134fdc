"""Several servers behind a router: each decides as if alone, one is today's, and no request is lost."""

from collections import Counter
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.routers.round_robin import RoundRobin
from kvtwin.sim.cluster.routers.session import Session
from kvtwin.sim.recording import RequestColumns, StepColumns
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.prefixes.chains import prefix_chain
from kvtwin.workloads.prefixes.infinite_cache import InfiniteCache
from kvtwin.workloads.request_record import RequestRecord
from tests.parts import examples, slow_but
from tests.sim.cluster.replicas import ALL_ROUTERS, Decisions, Replicas, chat, router_named, server


def columns_of(recorded, kind):
    return {column.name: list(getattr(recorded, column.name)) for column in fields(kind)}


# ---------------------------------------------------------------- each replica is today's server


@pytest.mark.parametrize("name", ALL_ROUTERS)
@pytest.mark.parametrize("closed", slow_but([True], [True, False]))
@pytest.mark.parametrize("asynchronous", slow_but([True], [True, False]))
def test_each_sub_trace_alone_makes_the_same_decisions(name, closed, asynchronous):
    run = Replicas(chat(closed=closed), router_named(name), async_scheduling=asynchronous)
    assert sum(map(len, run.sent)) == 36
    for replica, mine in enumerate(run.decisions):
        recorder, alone = run.alone(replica)
        assert mine.steps == alone.steps
        own = run.recorder.replicas[replica]
        assert columns_of(own.steps, StepColumns) == columns_of(recorder.steps, StepColumns)
        assert decided(own) == decided(recorder)


def decided(recorder):
    """Columns of the requests without the session's past: a turn sent the instant its session's last turn ended comes
    before that end if it is replayed."""
    columns = columns_of(recorder.requests, RequestColumns)
    return {name: values for name, values in columns.items() if name not in ("pause_ns", "history_tokens")}


def test_the_clusters_of_that_test_are_under_pressure():
    run = Replicas(chat(), RoundRobin())
    assert run.recorder.num_evictions > 50
    assert run.recorder.statistics.num_preemptions > 0
    assert min(map(len, run.sent)) > 5


@pytest.mark.parametrize("max_concurrency", slow_but([4], [None, 4]))
@pytest.mark.parametrize("name", ALL_ROUTERS)
def test_one_replica_is_todays_server(name, max_concurrency):
    run = Replicas(chat(), router_named(name), count=1, max_concurrency=max_concurrency)
    simulation = server(check=False)
    alone = Decisions(simulation)
    simulation._clients._max_concurrency = max_concurrency
    recorder = simulation.run(chat())
    assert run.decisions[0].steps == alone.steps
    for whole in (run.recorder, run.recorder.replicas[0]):
        assert columns_of(whole.requests, RequestColumns) == columns_of(recorder.requests, RequestColumns)
        assert columns_of(whole.steps, StepColumns) == columns_of(recorder.steps, StepColumns)
        assert whole.statistics == recorder.statistics
        for name in ("inter_token_latencies_ns", "output_tokens_per_s", "end_ns", "num_evictions", "unfinished"):
            assert getattr(whole, name) == getattr(recorder, name)
    assert run.recorder.peak_requests == recorder.peak_requests


# ---------------------------------------------------------------- where requests go


class Scripted(Router):
    """Sends request i to a given replica."""

    def __init__(self, replicas):
        self._replicas = iter(replicas)
        self.in_flight = []

    def choose(self, request, view):
        self.in_flight.append(list(view.in_flight))
        return next(self._replicas)


@examples(60)
@given(
    replicas=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    max_concurrency=st.sampled_from([None, 1, 5]),
    seed=st.integers(0, 5),
)
def test_no_request_is_lost_or_served_twice(replicas, max_concurrency, seed):
    router = Scripted(replicas)
    workload = chat(num_sessions=10, seed=seed)
    run = Replicas(workload, router, count=4, max_concurrency=max_concurrency)
    recorder = run.recorder
    assert Counter(recorder.requests.request_id) == Counter(record.request_id for record in workload)
    assert list(recorder.routing.replica) == replicas
    assert recorder.unfinished == []
    assert recorder.num_unsent == 0
    for number, each in enumerate(run.servers):
        assert len(each.recorder.requests.request_id) == replicas.count(number)
        assert each.scheduler.kv_cache.pool.num_used_blocks == 0
    assert max(sum(counts) for counts in router.in_flight) <= (max_concurrency or 30) - 1
    assert run.cluster._view.in_flight == [0] * 4


def test_a_replica_beyond_the_last_is_an_error():
    with pytest.raises(WorkloadError, match="replica 3: expected one of 0 to 2"):
        Replicas(chat(), Scripted([3]))


def test_what_a_router_sent_and_what_ended_is_counted():
    records = [
        RequestRecord(request_id=str(n), arrival_ns=n * 1000, prompt_tokens=20, output_tokens=50) for n in range(4)
    ]
    router = Scripted([0, 1, 1, 2])
    Replicas(records, router)
    assert router.in_flight == [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 2, 0]]


def test_cached_tokens_of_every_replica_are_noted_when_a_request_is_sent():
    tokens = list(range(64))
    records = [
        RequestRecord(request_id=str(n), arrival_ns=n * 10**9, prompt_tokens=len(t), output_tokens=2, token_ids=t)
        for n, t in enumerate([tokens, tokens[:40] + [7] * 24, tokens])
    ]
    run = Replicas(records, Scripted([0, 1, 1]))
    rows = run.recorder.requests
    assert list(rows.replica) == [0, 1, 1]
    assert list(rows.cached_tokens) == [0, 0, 32]
    assert list(rows.most_cached_tokens) == [0, 32, 48]
    assert list(rows.hit_tokens) == [0, 0, 32]


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("count", slow_but([2], [2, 3]))
def test_sessions_with_infinite_caches_are_one_cache_per_group_of_sessions(count):
    workload = chat(num_sessions=20, closed=False, turn_ns=10**9)
    run = Replicas(workload, Session(), count=count, usable=5000, max_num_seqs=64)
    caches = [InfiniteCache() for _ in range(count)]
    group_of = dict(zip(run.recorder.requests.session, run.recorder.requests.replica, strict=True))
    assert len(set(group_of.values())) == count
    wanted = {}
    for record in workload:
        chain = prefix_chain(record, 16)
        wanted[record.request_id] = 16 * min(caches[group_of[record.session]].add(chain), chain.max_hit_blocks)
    rows = run.recorder.requests
    assert dict(zip(rows.request_id, rows.hit_tokens, strict=True)) == wanted
    assert sum(wanted.values()) > 0
