"""Random replicas behind routers, decided by the plain scheduler and by the compiled loop: everything must be equal.

``python -m tests.sim.cluster.compiled_clusters FIRST COUNT`` compares so many from a seed on, and fails at the first
difference.
"""

import sys
from dataclasses import fields, replace
from random import Random

from kvtwin.experiments.misses.sources import MissSources
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster
from kvtwin.sim.cluster.router import Router
from kvtwin.sim.cluster.routers.registry import ROUTERS
from kvtwin.sim.linear import LinearStepTime
from kvtwin.sim.serving import ServerSimulation
from kvtwin.sim.simulated_executor import SimulatedExecutor
from kvtwin.workloads.errors import WorkloadError
from tests.sim.cluster.replicas import router_named
from tests.sim.compiled_cases import random_case


class Witness(Router):
    """Sends requests at random, and notes all that any router could see."""

    name = "witness"

    def begin(self, view):
        self.seen, self.random = [], Random(0)
        self.caches, self.metrics = view.follow_caches(), view.scrape(2_000_000)
        view.tell_first_tokens(lambda name, replica: self.seen.append((view.now_ns, name, replica)))

    def choose(self, request, view):
        now_ns = view.now_ns
        cached = [cache.num_cached_tokens(request.record, now_ns) for cache in self.caches]
        self.seen.append((now_ns, cached, [metrics.at(now_ns) for metrics in self.metrics], list(view.in_flight)))
        return self.random.randrange(view.num_replicas)


def outcome(case, router, count, *, compiled):
    """All that a run leaves behind, by name."""
    clock = Clock()
    servers = [
        ServerSimulation(
            case.config,
            SimulatedExecutor(LinearStepTime(case.step_time)),
            clock=clock,
            ignore_eos=case.ignore_eos,
            compiled=compiled,
        )
        for _ in range(count)
    ]
    misses = [MissSources(case.config) for _ in servers]
    for server, each in zip(servers, misses, strict=True):
        server.observers.append(each)
    witness = Witness()
    asked = witness if router == Witness.name else router_named(router)
    try:
        cluster = Cluster(clock, servers, asked, max_concurrency=case.max_concurrency)
        recorder = cluster.run(case.records)
    except (WorkloadError, ValueError) as error:
        return {"error": str(error)}
    assert all(bool(server.why_plain) != compiled for server in servers)
    found = {name: list(getattr(recorder.routing, name)) for name in vars(recorder.routing)}
    for replica, (server, each) in enumerate(zip(recorder.replicas, misses, strict=True)):
        kept = {name: value for name, value in vars(server).items() if not name.startswith("_")}
        for name in ("requests", "steps"):
            columns = kept.pop(name)
            kept |= {f"{name}: {field.name}": list(getattr(columns, field.name)) for field in fields(columns)}
        scheduler, pool = kept.pop("scheduler"), server.scheduler.kv_cache.pool
        kept |= {"statistics": scheduler.statistics, "misses": each.figures(), "free queue": pool.free_queue()}
        found |= {f"replica {replica}: {name}": value for name, value in kept.items()}
    found["seen"] = getattr(witness, "seen", [])
    return found | {"peak": recorder.peak_requests, "end": recorder.end_ns}


def difference(seed, router=None):
    """The router of case ``seed``, if none is given; what differs; how many steps and requests the plain run has."""
    random = Random(seed)
    drawn, count, case = random.choice([*sorted(ROUTERS), Witness.name]), random.randint(1, 4), random_case(seed)
    router = router or drawn
    if router != Witness.name and ROUTERS[router].serves_api:
        case = case._replace(records=[replace(record, n=1) for record in case.records])
    plain, compiled = (outcome(case, router, count, compiled=each) for each in (False, True))
    differing = [name for name in plain if plain[name] != compiled.get(name)]
    steps = sum(len(value) for name, value in plain.items() if name.endswith("steps: tokens"))
    return router, differing, (steps, len(plain.get("replica", ())))


def main(first, count):
    """Compare cases; 1 at the first that differs."""
    totals = {}
    for seed in range(first, first + count):
        router, differing, (steps, requests) = difference(seed)
        if differing:
            print(f"case {seed}, {router}, differs in {', '.join(differing)}")
            return 1
        cases, all_steps, all_requests = totals.get(router, (0, 0, 0))
        totals[router] = (cases + 1, all_steps + steps, all_requests + requests)
    print(
        "\n".join(
            f"{router}: {numbers[0]} cases, {numbers[1]} steps, {numbers[2]} requests"
            for router, numbers in sorted(totals.items())
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
