"""vLLM's own balancer in a simulation: what ranks tell, when it is seen, and ranks that are asked for."""

import pytest

from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.cluster.routers.round_robin import RoundRobin
from kvtwin.sim.cluster.routers.vllm_dp import VllmDataParallel
from kvtwin.sim.cluster.view import View
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.request_record import RequestRecord
from tests.sim.cluster.replicas import Replicas, server
from tests.sim.test_serving import FixedStepTime

MS = 1_000_000


def request(name, arrival_ms=0.0, prompt=20, output=3, **fields):
    return RequestRecord(
        request_id=str(name), arrival_ns=round(arrival_ms * MS), prompt_tokens=prompt, output_tokens=output, **fields
    )


def replicas_of(run):
    return dict(zip(run.recorder.requests.request_id, run.recorder.requests.replica, strict=True))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_ranks_tell_their_load_between_steps(asynchronous):
    """Steps of 10 ms: a request that arrives during one is told of at its end; usage alone is nothing to tell."""
    clock, told = Clock(), []
    engine = server(clock, usable=10, step_time=FixedStepTime(10 * MS), async_scheduling=asynchronous)
    View(clock, [engine]).report_loads(lambda replica, load, now_ns, _: told.append((now_ns / MS, replica, load)))
    Cluster(clock, [engine], RoundRobin()).run([request("a"), request("b", 3.0)])
    wanted = [(0, 1, 0, 0.0), (10, 1, 1, 0.2), (20, 0, 2, 0.4), (30, 0, 1, 0.2), (40, 0, 0, 0.0)]
    if asynchronous:  # the second step is scheduled at once, and the second request waits for its end
        wanted = [wanted[0], (0, 0, 1, 0.2), *wanted[1:4], (50, 0, 0, 0.0)]
    assert [(at, *load[:2], pytest.approx(load.usage)) for at, _, load in told] == wanted


def test_with_nothing_to_tell_ranks_take_turns():
    run = Replicas([request(n, n) for n in range(8)], VllmDataParallel(api_server_count=1), count=4)
    assert [replicas_of(run)[str(n)] for n in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ranks_per_node", "expected"),
    [(4, [0, 1, 2, 3, 0, 1, 2, 3]), (2, [0, 2, 1, 3, 0, 2, 1, 3]), (1, [0, 1, 2, 3, 0, 1, 2, 3])],
)
def test_nodes_take_turns_and_so_do_the_ranks_of_each(ranks_per_node, expected):
    router = VllmDataParallel(api_server_count=1, ranks_per_node=ranks_per_node)
    run = Replicas([request(n, n) for n in range(8)], router, count=4)
    assert [replicas_of(run)[str(n)] for n in range(8)] == expected


def test_a_node_is_chosen_whatever_its_load():
    """Of two nodes the first has long requests only: it still gets every other one, and none but it knows of them."""
    records = [request(n, n / 10, output=400 if n % 2 == 0 else 1) for n in range(12)]
    run = Replicas(records, VllmDataParallel(api_server_count=1, ranks_per_node=2), count=4)
    found = [replicas_of(run)[str(n)] for n in range(12)]
    assert [rank // 2 for rank in found] == [0, 1] * 6
    assert sorted(found[::2]) == [0, 0, 0, 1, 1, 1]
    drawn = VllmDataParallel(api_server_count=1, ranks_per_node=2, nodes="random")
    assert [rank // 2 for rank in replicas_of(Replicas(records, drawn, count=4)).values()] != [0, 1] * 6


def test_a_rank_of_a_node_is_asked_for_by_its_place_there():
    records = [request(n, n, data_parallel_rank=1) for n in range(4)]
    run = Replicas(records, VllmDataParallel(ranks_per_node=2), count=4)
    assert [replicas_of(run)[str(n)] for n in range(4)] == [1, 3, 1, 3]
    with pytest.raises(WorkloadError, match="data_parallel_rank: expected one of 0 to 1, got 2"):
        Replicas([request(0, data_parallel_rank=2)], VllmDataParallel(ranks_per_node=2), count=4)


def test_a_rank_that_is_asked_for():
    asked = [2, 2, None, 2, None, None]
    records = [request(n, n / 10, output=50, data_parallel_rank=rank) for n, rank in enumerate(asked)]
    run = Replicas(records, VllmDataParallel(api_server_count=1), count=3)
    assert [replicas_of(run)[str(n)] for n in range(6)] == [2, 2, 0, 2, 1, 0]


def test_a_rank_beyond_the_last_is_an_error():
    with pytest.raises(WorkloadError, match="data_parallel_rank: expected one of 0 to 2, got 3"):
        Replicas([request(0, data_parallel_rank=3)], VllmDataParallel())
    with pytest.raises(WorkloadError, match="data_parallel_rank: expected 0, got 1"):
        server().run([request(0, data_parallel_rank=1)])


def test_several_samples_of_a_prompt_are_refused_by_name():
    with pytest.raises(WorkloadError, match="n: vLLM spreads the samples"):
        Replicas([request(0, n=2)], VllmDataParallel())


def test_what_the_front_end_refuses_is_counted_once_and_balanced_never():
    records = [request(0, prompt=10**6), request(1), request(2)]
    run = Replicas(records, VllmDataParallel(api_server_count=1))
    assert replicas_of(run) == {"1": 0, "2": 1}
    assert run.recorder.refused == {"prompt >= max_model_len": 1}


def test_each_request_meets_an_api_server_by_chance_and_the_seed_repeats_it():
    records = [request(n, n, output=30) for n in range(40)]
    first, again, other = (
        replicas_of(Replicas(records, VllmDataParallel(seed=seed, api_server_count=3), count=3)) for seed in (1, 1, 2)
    )
    assert first == again != other
