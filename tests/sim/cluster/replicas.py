"""What tests of several replicas share: small clusters, random workloads, and logs of all that an engine decides."""

import random

from kvtwin.engine.config import EngineConfig
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.cluster.routers.registry import ROUTERS, make_router
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.request_record import RequestRecord
from tests.sim.test_serving import FixedStepTime

COMMON = {"seed": 0, "characters_per_token": 4, "api_server_count": None, "ranks_per_node": None}


def router_named(name, **settings):
    return make_router(name, settings, COMMON)


class Decisions(ServerObserver):
    """Everything that an engine decides, step by step, with the blocks."""

    def __init__(self, simulation):
        self.steps = []
        self._pool = simulation.scheduler.kv_cache.pool
        simulation.observers.append(self)

    def scheduled(self, step, now_ns):
        self.steps.append(
            (
                now_ns,
                [request.request_id for request in step.requests],
                list(step.num_tokens),
                [(each.request.request_id, each.num_hit_tokens, each.block_tables) for each in step.admitted],
                [(request.request_id, blocks) for request, blocks in step.new_blocks],
                [request.request_id for request in step.preempted],
                [request.request_id for request in step.finished],
                self._pool.num_free_blocks,
                self._pool.num_evictions,
            )
        )


def server(clock=None, usable=24, step_time=None, check=True, **config):
    settings = {"async_scheduling": True, "max_num_batched_tokens": 256, "max_num_seqs": 8} | config
    return ServerSimulation(
        EngineConfig(num_blocks=usable + 1, **settings),
        SimulatedExecutor(step_time or FixedStepTime(step_ns=1_000_000, token_ns=10_000)),
        clock=clock,
        check=check,
    )


class Replicas:
    """A cluster of equal servers that ran ``workload``, with all decisions and sub-traces."""

    def __init__(self, workload, router, count=3, max_concurrency=None, **settings):
        clock = Clock()
        self.servers = [server(clock, **settings) for _ in range(count)]
        self.decisions = [Decisions(each) for each in self.servers]
        self.sent = [[] for _ in range(count)]
        self.cluster = Cluster(
            clock,
            self.servers,
            router,
            max_concurrency=max_concurrency,
            on_sent=lambda replica, sent, _: self.sent[replica].append(sent),
        )
        self.recorder = self.cluster.run(workload)
        self.settings = settings

    def alone(self, replica):
        """The sub-trace of a replica, replayed by today's simulation: the recorder and the decisions.

        They are compared with those of the cluster, whose invariants were checked after every step.
        """
        simulation = server(check=False, **self.settings)
        decisions = Decisions(simulation)
        return simulation.run(self.sent[replica]), decisions


def chat(num_sessions=12, turns=3, seed=0, gap_ns=1_000_000, closed=True, turn_ns=40_000_000):
    """Conversations on a few system prompts, every token known; later turns wait for answers if ``closed``."""
    draw = random.Random(seed)
    systems = [[draw.randrange(1000) for _ in range(48)] for _ in range(3)]
    records = []
    for session in range(num_sessions):
        tokens, start_ns = list(draw.choice(systems)), draw.randrange(gap_ns * num_sessions)
        for turn in range(turns):
            tokens += [draw.randrange(1000) for _ in range(draw.randrange(1, 40))]
            outputs = [draw.randrange(1000) for _ in range(draw.randrange(1, 60))]
            records.append(
                RequestRecord(
                    request_id=f"{session}/{turn}",
                    arrival_ns=start_ns if closed else start_ns + turn * turn_ns,
                    prompt_tokens=len(tokens),
                    output_tokens=len(outputs),
                    token_ids=list(tokens),
                    output_token_ids=outputs,
                    session=f"s{session}",
                    think_time_ns=draw.choice([0, 5_000_000]) if closed and turn else None,
                )
            )
            tokens += outputs
    return sorted(records, key=lambda record: record.arrival_ns)


ALL_ROUTERS = sorted(ROUTERS)
