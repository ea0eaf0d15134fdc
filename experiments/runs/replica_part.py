"""One replica of a replay, simulated by itself: what runs on a worker, which may be on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.run_chains import RunChains
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.loads import opened_load, within_the_clock
from kvtwin.experiments.runs.server import ChangeStepTime, Server
from kvtwin.experiments.setup.replicas import replica_options, router_of
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.destinations import Destinations
from kvtwin.sim.cluster.one_of_several import Event, OneOfSeveral, Send
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.workload import Workload


@dataclass(frozen=True)
class ReplicaPart:
    """What a worker found of its replica."""

    recorder: Recorder
    misses: MissSources
    events: list[Event]
    """Of the records that it was sent."""
    own_cached_tokens: list[int]
    """Of those that it served, in order, the tokens that were cached here when they were sent."""
    others_cached_tokens: list[int]
    """The same of all that others were sent; nothing if it was not asked."""


def simulate_part(
    options: ReplayOptions,
    replica: int,
    sends: Sequence[Send],
    workload: Workload | None = None,
    change: ChangeStepTime | None = None,
) -> ReplicaPart | str:
    """Simulate one replica of ``options``, or say why it cannot be.

    ``sends`` are those to all replicas, in order; without them nothing is asked of what others are sent.
    """
    try:
        with within_the_clock():
            return _simulate(options, replica, sends, workload, change)
    except (UserError, WorkloadError) as error:
        return " ".join(str(error).split())


def _simulate(
    options: ReplayOptions,
    replica: int,
    sends: Sequence[Send],
    workload: Workload | None,
    change: ChangeStepTime | None,
) -> ReplicaPart:
    servers = [Server.of(each, change) for each in replica_options(options)]
    server = servers[replica]
    _, load = opened_load(options, workload)
    records, destinations = list(load), Destinations(router_of(options, options.seed), len(servers))
    mine = [(position, record) for position, record in enumerate(records) if destinations.of(record) == replica]
    tree = PrefixTree()
    for size in dict.fromkeys(each.config.alignment_tokens for each in servers):  # all workers give the same names
        chains = RunChains(size, tree)
        for send in sends:
            chains.of(records[send.position])
    misses, clock = MissSources(server.config, tree), Clock()
    alone = OneOfSeveral(clock, server.simulation(misses, clock=clock))
    to_others = [(send.time_ns, records[send.position]) for send in sends if send.replica != replica]
    run = alone.run_part(mine, to_others)
    (recorder,) = run.replicas
    return ReplicaPart(recorder, misses, alone.events, list(run.routing.cached_tokens), alone.cached_tokens)
