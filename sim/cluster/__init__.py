"""Several servers on one clock, behind a router: replicas, as vLLM's data parallelism and other routers have them.

>>> from kvtwin.engine.config import EngineConfig
>>> from kvtwin.sim.clock import Clock
>>> from kvtwin.sim.cluster.cluster import Cluster
>>> from kvtwin.sim.cluster.routers.round_robin import RoundRobin
>>> from kvtwin.sim.linear import LinearStepTime
>>> from kvtwin.sim.serving import ServerSimulation
>>> from kvtwin.sim.simulated_executor import SimulatedExecutor
>>> from kvtwin.workloads.request_record import RequestRecord
>>> clock = Clock()
>>> executors = [SimulatedExecutor(LinearStepTime({"step_ns": 1_000_000})) for _ in range(2)]
>>> servers = [ServerSimulation(EngineConfig(num_blocks=100), executor, clock=clock) for executor in executors]
>>> records = [RequestRecord(request_id=str(n), arrival_ns=n, prompt_tokens=64, output_tokens=3, token_ids=range(64))
...            for n in range(3)]
>>> run = Cluster(clock, servers, RoundRobin()).run(records)
>>> list(run.requests.replica), list(run.requests.hit_tokens)
([0, 1, 0], [0, 0, 48])

:mod:`~kvtwin.sim.cluster.router` says what a router is, :mod:`~kvtwin.sim.cluster.view` what it can see.
"""
