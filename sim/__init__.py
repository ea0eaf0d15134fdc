"""The simulated server: a SimPy model of arrivals and the engine's loop, and step-time models.

>>> from kvtwin.engine.config import EngineConfig
>>> from kvtwin.sim.linear import LinearStepTime
>>> from kvtwin.sim.serving import ServerSimulation
>>> from kvtwin.sim.simulated_executor import SimulatedExecutor
>>> from kvtwin.workloads.request_record import RequestRecord
>>> records = [RequestRecord(request_id=str(n), arrival_ns=0, prompt_tokens=64, output_tokens=3, token_ids=range(64))
...            for n in range(2)]
>>> executor = SimulatedExecutor(LinearStepTime({"step_ns": 1_000_000}))
>>> run = ServerSimulation(EngineConfig(num_blocks=100), executor).run(records)
>>> list(run.requests.hit_tokens), list(run.requests.finish_ns)
([0, 48], [3000000, 3000000])
"""
