"""A replay of several replicas behind a router, and its results."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.records.event_recording import EventFolder, recorded_events
from kvtwin.experiments.runs.facts import Stopwatch, request_progress
from kvtwin.experiments.runs.heading import heading_lines
from kvtwin.experiments.runs.loads import opened_load, within_the_clock
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.runs.routing_figures import OneCache, routing_figures
from kvtwin.experiments.runs.server import Server, check_refusals
from kvtwin.experiments.runs.verdicts import verdicts
from kvtwin.experiments.setup.replicas import replica_options, router_of
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cluster import Cluster, Sent
from kvtwin.sim.cluster.recording import ClusterRecorder
from kvtwin.sim.recording import Recorder
from kvtwin.sim.serving import Observe, ServerSimulation
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.formats.native import write_lines
from kvtwin.workloads.load import Load
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS
from kvtwin.workloads.workload import Workload

_SUB_TRACE = "trace.jsonl.gz"


@dataclass(frozen=True)
class ReplayedReplicas(Replayed):
    """The results of all replicas together, and those of each: as if it had been alone with its part of the trace."""

    replicas: tuple[Replayed, ...] = ()
    sent: tuple[list[RequestRecord], ...] = ()
    """What each replica was sent, where the run is kept."""

    def files(self) -> dict[str, bytes]:
        files = super().files()
        for number, replica in enumerate(self.replicas):
            files |= {f"replica-{number}/{name}": content for name, content in replica.files().items()}
        for number, records in enumerate(self.sent):
            files[f"replica-{number}/{_SUB_TRACE}"] = _packed(records)
        return files


def replay_replicas(
    options: ReplayOptions,
    workload: Workload | None = None,
    *,
    show_progress: bool = False,
    observe: Observe | None = None,
    events: EventFolder | None = None,
    step_time: StepTimeModel | None = None,
) -> ReplayedReplicas:
    """Simulate the replicas of ``options`` as :func:`~kvtwin.experiments.runs.replay.replay` does one server."""
    if observe:
        raise UserError("--data-parallel-size: only one server can be explained; replay a replica's own trace")
    made = {each: Server.of(each, step_time) for each in dict.fromkeys(replica_options(options))}
    servers = [made[each] for each in replica_options(options)]
    workload, load = opened_load(options, workload, show_progress=show_progress)
    sent: list[list[RequestRecord]] = [[] for _ in servers]
    num_sent = [0] * len(servers)
    one_cache = OneCache([server.config for server in servers])

    def keep(replica: int, record: RequestRecord) -> None:
        num_sent[replica] += 1
        if not simulations[replica].refusal(record):
            one_cache.add(record)
        if options.out:
            sent[replica].append(record)

    clock, stopwatch, tree = Clock(), Stopwatch(), PrefixTree()
    misses = [MissSources(server.config, tree) for server in servers]
    together = servers[0].lock_step(clock, len(servers))
    simulations = [
        server.simulation(each, clock=clock, together=(together, rank) if together else None)
        for rank, (server, each) in enumerate(zip(servers, misses, strict=True))
    ]
    with request_progress("replay", load.num_requests, show=show_progress) as advance, ExitStack() as stack:
        for number, simulation in enumerate(simulations):
            folder = events.folder(f"replica-{number}") if events else None
            stack.enter_context(recorded_events(options, simulation, folder))
        cluster = _cluster(options, clock, simulations, load, advance, keep)
        with within_the_clock():
            recorder = cluster.run(load)
    check_refusals(options, recorder)
    machine = stopwatch.facts()
    replicas = [
        _of_replica(server, each, own, _own_load(load, number_sent), machine, _path(options, number))
        for number, (server, each, own, number_sent) in enumerate(
            zip(servers, misses, recorder.replicas, num_sent, strict=True)
        )
    ]
    summary = _summary(servers, recorder, misses, load, replicas, one_cache)
    if together:
        summary |= {"forward_passes": together.num_passes, "idle_rank_passes": together.num_idle_passes}
    summary["num_unsorted"] = workload.num_unsorted
    summary["trace_notes"] = list(workload.warnings)
    summary["verdicts"] = verdicts(summary, recorder, servers[0].config, load, len(servers))
    heading = heading_lines(servers[0], workload, summary)
    heading.insert(3, _replica_line(servers, options))
    configuration = servers[0].configuration(options)
    parts = tuple(replicas)
    kept = tuple(sent) if options.out else ()
    return ReplayedReplicas(summary, heading, recorder, configuration, machine, parts, kept)


def _cluster(
    options: ReplayOptions,
    clock: Clock,
    simulations: list[ServerSimulation],
    load: Load,
    advance: Callable[[int], None],
    keep: Sent,
) -> Cluster:
    """The servers behind their router. UserError: what the router compares differs between them."""
    router = router_of(options)
    if router.follows_caches and len({each.scheduler.config.alignment_tokens for each in simulations}) > 1:
        raise UserError(f"--replicas: {router.name} needs replicas with equal --block-size")
    try:
        return Cluster(
            clock,
            simulations,
            router,
            event_lag_ns=round(options.router_event_lag_ms * MILLISECOND_NS),
            max_concurrency=load.max_concurrency,
            on_progress=advance,
            on_sent=keep,
        )
    except ValueError as error:
        raise UserError(f"--router {router.name}: {error}") from None


def _summary(
    servers: list[Server],
    recorder: ClusterRecorder,
    misses: list[MissSources],
    load: Load,
    replicas: list[Replayed],
    one_cache: OneCache,
) -> dict[str, Any]:
    """The figures of all replicas together under the keys of one, and what the router did."""
    summary = servers[0].summary(recorder, MissSources.total(servers[0].config, misses), load)
    parts = [replica.summary for replica in replicas]
    for name in summary:
        if name in _ADDED:
            summary[name] = _added([part[name] for part in parts])
        elif name.startswith("kv_memory_") and len({server.config for server in servers}) > 1:
            summary[name] = None  # shares of pools of different sizes
    queries, hits = (summary[f"external_prefix_cache_{what}"] for what in ("queries", "hits"))
    summary["external_prefix_cache_hit_rate"] = hits / queries if queries else 0.0
    busy_s = [part["device_busy_s"] for part in parts]
    weights = busy_s if any(busy_s) else [1.0] * len(parts)
    usage = sum(part["kv_cache_usage_mean"] * weight for part, weight in zip(parts, weights, strict=True))
    summary["kv_cache_usage_mean"] = usage / sum(weights)
    summary["kv_cache_usage_peak"] = max(part["kv_cache_usage_peak"] for part in parts)
    summary["kv_cache_peak_used_blocks"] = max(part["kv_cache_peak_used_blocks"] for part in parts)
    return summary | routing_figures(recorder, parts) | one_cache.figures()


_ADDED = frozenset(
    f"{what}_{unit}" for what in ("swapped_out", "swapped_in", "offloaded", "loaded") for unit in ("blocks", "bytes")
) | {
    "swap_fallbacks",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "preempted_external_prefix_cache_queries",
    "preempted_external_prefix_cache_hits",
    "host_transfer_s",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
}
"""Keys of what was copied to and from the host, and of blocks' lives: of all replicas they are the sum."""


def _added(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _added([value[key] for value in values]) for key in values[0]}
    return sum(values)


def _of_replica(
    server: Server, misses: MissSources, recorder: Recorder, load: Load, machine: dict[str, Any], trace: str
) -> Replayed:
    options = replace(server.options, trace=trace)
    summary = server.summary(recorder, misses, load)
    summary["num_unsorted"] = 0
    summary["trace_notes"] = []
    summary["verdicts"] = []
    return Replayed(summary, [], recorder, server.configuration(options), machine)


def _own_load(load: Load, num_requests: int) -> Load:
    """What a replica was sent, as a load of its own."""
    return replace(
        load,
        num_requests=num_requests,
        rate_scale=1.0,
        request_rate=None,
        session_rate=None,
        burstiness=1.0,
        max_concurrency=None,
    )


def _path(options: ReplayOptions, replica: int) -> str:
    return str(options.out / f"replica-{replica}" / _SUB_TRACE) if options.out else options.trace


def _replica_line(servers: list[Server], options: ReplayOptions) -> str:
    kinds = "equal" if len({server.config for server in servers}) == 1 else "unequal"
    config = f" {options.router_config}" if options.router_config else ""
    return f"data    parallel over {len(servers)} {kinds} replicas, router {options.router}{config}"


def _packed(records: list[RequestRecord]) -> bytes:
    """A trace in kvtwin's format, the same bytes whenever it is written."""
    packed = BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        write_lines(file, records, "what one replica was sent")
    return packed.getvalue()
