"""The balancer and the coordinator of vLLM's data parallelism answer as the real ones do."""

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from kvtwin.sim.cluster.coordinator import Coordinator
from kvtwin.sim.cluster.load import Load
from kvtwin.sim.cluster.routers.vllm_dp import FrontEnd
from tests.parity.balancer.cases import balancer_case, coordinator_case

HERE = Path(__file__).parent
MICROSECOND_NS = 1000


@pytest.fixture(scope="module")
def answers():
    """What the real vLLM answered to the cases from 0 on."""
    return json.loads(gzip.decompress((HERE / "answers.json.gz").read_bytes()))


def chosen(case, first_rank=0):
    """The rank of every request, and the front end at the end, whose node has the engines from ``first_rank`` on."""
    front_end = FrontEnd(case["engines"], case["clients"], case["client"], first_rank)
    others = [Load(9, 9, 0.9)]
    engines, engine_of = [], {}
    for kind, what, *rank in case["events"]:
        if kind == "arrives":
            engine_of[what] = front_end.choose(*rank)
            engines.append(engine_of[what])
        elif kind == "end":
            for name in what:
                front_end.ended(engine_of.pop(name))
        else:
            front_end.take([*(others * first_rank), *(Load(*counts) for counts in what), *others])
    return engines, front_end


def published(case):
    """Every publication: when, in microseconds, and what."""
    coordinator = Coordinator(case["engines"], steps_together=case["together"])
    found = []

    def publish_until(time_us):
        while coordinator.due_ns <= time_us * MICROSECOND_NS:
            due_ns = coordinator.due_ns
            counts = [list(load) for load in coordinator.advance_to(due_ns)]
            found.append([due_ns / MICROSECOND_NS, counts])

    for time_us, engine, counts, wave, step in case["messages"]:
        publish_until(time_us - 1)
        coordinator.receive(engine, Load(*counts), time_us * MICROSECOND_NS, (wave, step))
    publish_until(case["end_us"])
    return found


def differences(answers, first=0):
    """Cases whose answers differ: of the balancer, of its snapshots, of the coordinator."""
    balancer = [
        seed
        for seed, wanted in enumerate(answers["balancer"], start=first)
        if "".join(map(str, chosen(balancer_case(seed))[0])) != wanted
    ]
    snapshots = [
        seed
        for seed, wanted in enumerate(answers["snapshots"], start=first)
        if chosen(balancer_case(seed))[1].loads != wanted
    ]
    coordinators = [
        seed
        for seed, wanted in enumerate(answers["coordinator"], start=first)
        if published(coordinator_case(seed)) != wanted
    ]
    return balancer, snapshots, coordinators


def test_two_thousand_sequences_are_balanced_as_vllm_does(answers):
    assert len(answers["balancer"]) == 2000
    assert sum(map(len, answers["balancer"])) > 30_000
    assert differences(answers | {"coordinator": []}) == ([], [], [])


def test_the_engines_of_a_node_are_balanced_as_if_there_were_no_others(answers):
    for seed, wanted in enumerate(answers["balancer"][:200]):
        ranks, front_end = chosen(balancer_case(seed), first_rank=3)
        assert "".join(str(rank - 3) for rank in ranks) == wanted
        assert front_end.loads == answers["snapshots"][seed]


def test_the_coordinator_publishes_when_and_what_vllms_does(answers):
    assert sum(map(len, answers["coordinator"])) > 2_000
    assert differences({"balancer": [], "snapshots": [], "coordinator": answers["coordinator"]}) == ([], [], [])


def test_a_difference_is_seen(answers):
    wrong = ["1" * len(answers["balancer"][0]), *answers["balancer"][1:3]]
    late = [[[time_us + 1, what] for time_us, what in answers["coordinator"][0]]]
    assert differences({"balancer": wrong, "snapshots": [], "coordinator": late}) == ([0], [], [0])


@pytest.mark.slow
def test_fresh_sequences_too():
    if "VLLM_ORACLE_SRC" not in os.environ or "ORACLE_PYTHON" not in os.environ:
        pytest.skip("the oracle is not set up (tests/parity/oracle/README.md)")
    command = [os.environ["ORACLE_PYTHON"], str(HERE / "ask_vllm.py"), "20261130"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert differences(json.loads(out), 20261130) == ([], [], [])
