"""Ranks that share experts step as vLLM's engine cores do: every pass, every agreement, everything that is told."""

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from kvtwin.engine.config import EngineConfig
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.cluster.lock_step import LockStep, LockStepRank
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord
from tests.parity.lock_step.cases import lock_step_case
from tests.parts import slow_but
from tests.sim.test_serving import FixedStepTime

HERE = Path(__file__).parent


class Asked(Router):
    """Sends every request to the rank that its id begins with; keeps what the ranks tell of their load."""

    def begin(self, view):
        view.report_loads(self._told)

    def choose(self, request, view):
        return int(request.record.request_id.split("/")[0])

    def _told(self, rank, load, now_ns, stamp):
        self.logs[rank].append(["told", now_ns, [load.waiting, load.running], *stamp])


class Ends(ServerObserver):
    """Keeps when requests end."""

    def __init__(self, log):
        self._log = log

    def ended(self, request, now_ns):
        self._log.append(["ends", now_ns, request.request_id.split("/")[1]])


class LoggedLockStep(LockStep):
    """Keeps who joins a forward pass, and at which step of which wave."""

    def join(self, rank, duration_ns):
        kind = "idle" if duration_ns is None else "step"
        self.logs[rank].append([kind, self._clock.now_ns, *self.servers[rank].step_stamp])
        return super().join(rank, duration_ns)


def simulated(case):
    """What every rank does, as ``ask_vllm.py`` logs it."""
    clock, logs = Clock(), [[] for _ in range(case["ranks"])]
    together = LoggedLockStep(clock, case["ranks"], case["idle_pass_ns"], case["sync_interval"])
    config = EngineConfig(
        num_blocks=2000, max_num_seqs=case["seats"], async_scheduling=case["is_async"], enable_prefix_caching=False
    )
    step_time = FixedStepTime(step_ns=case["step_ns"], token_ns=case["token_ns"])
    servers = [
        LockStepRank(config, SimulatedExecutor(step_time), together, rank, clock=clock) for rank in range(case["ranks"])
    ]
    router = Asked()
    together.logs = router.logs = logs
    together.servers = servers
    for server, log in zip(servers, logs, strict=True):
        server.observers.append(Ends(log))
    requests = case["requests"]
    workload = [
        RequestRecord(
            request_id=f"{rank}/{len(requests) - 1 - number}", arrival_ns=time_ns, prompt_tokens=1, output_tokens=tokens
        )
        for number, (time_ns, rank, tokens) in enumerate(requests)
    ]
    recorder = Cluster(clock, servers, router).run(workload)
    assert not recorder.unfinished
    return logs


@pytest.fixture(scope="module")
def answers():
    """What the real vLLM did in the cases from 0 on."""
    return json.loads(gzip.decompress((HERE / "answers.json.gz").read_bytes()))


@pytest.mark.parametrize("first", slow_but([0], range(0, 200, 40)))
def test_two_hundred_runs_step_as_vllms_engine_cores_do(answers, first):
    for seed in range(first, first + 40):
        assert simulated(lock_step_case(seed)) == answers[seed], seed


def test_the_answers_have_waves_passes_without_requests_and_requests_that_wait(answers):
    entries = [entry for run in answers for log in run for entry in log]
    assert len(answers) == 200
    assert max(entry[-2] for entry in entries if entry[0] == "idle") > 5
    assert sum(entry[0] == "idle" for entry in entries) > 1000
    assert sum(entry[0] == "told" and entry[2][0] > 0 for entry in entries) > 300


@pytest.mark.skipif("ORACLE_PYTHON" not in os.environ, reason="asks the real vLLM (set ORACLE_PYTHON)")
def test_fresh_runs_step_as_vllms_engine_cores_do():
    first = 100_000
    command = [os.environ["ORACLE_PYTHON"], str(HERE / "ask_vllm.py"), str(first)]
    answers = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    for seed, wanted in enumerate(answers, first):
        assert simulated(lock_step_case(seed)) == wanted, seed
