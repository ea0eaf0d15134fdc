"""A replay of several replicas behind a router, and its results."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.prefix_tree import PrefixTree
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.fields import fields_of
from kvtwin.experiments.options.load import LoadOptions
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.sessions import SessionOptions
from kvtwin.experiments.options.trace import FormatOptions
from kvtwin.experiments.records.event_recording import EventFolder, recorded_events
from kvtwin.experiments.runs.facts import Stopwatch, request_progress
from kvtwin.experiments.runs.heading import heading_lines
from kvtwin.experiments.runs.loads import opened_load, within_the_clock
from kvtwin.experiments.runs.parallel_replicas import simulate_in_parallel
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.runs.replica_summary import summary_of_all
from kvtwin.experiments.runs.sent_records import SentRecords
from kvtwin.experiments.runs.server import ChangeStepTime, Server, check_refusals
from kvtwin.experiments.runs.verdicts import verdicts
from kvtwin.experiments.setup.replicas import cluster_of, replica_options
from kvtwin.sim.clock import Clock
from kvtwin.sim.cluster.cached_tokens import KeySpaces
from kvtwin.sim.recording import Recorder
from kvtwin.sim.serving import Observe
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.formats.native import write_lines
from kvtwin.workloads.load import Load
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS
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
    change: ChangeStepTime | None = None,
) -> ReplayedReplicas:
    """Simulate the replicas of ``options`` as :func:`~kvtwin.experiments.runs.replay.replay` does one server."""
    if observe:
        raise UserError("--data-parallel-size: only one server can be explained; replay a replica's own trace")
    servers = _servers(options, change)
    given = workload
    workload, load = opened_load(options, workload, show_progress=show_progress)
    clock, stopwatch, tree, keys = Clock(), Stopwatch(), PrefixTree(), KeySpaces()
    misses = [MissSources(server.config, tree) for server in servers]
    together = servers[0].lock_step(clock, len(servers))
    simulations = [
        server.simulation(
            each, clock=clock, together=(together, rank) if together else None, keys=keys.of(server.config)
        )
        for rank, (server, each) in enumerate(zip(servers, misses, strict=True))
    ]
    sent = SentRecords(simulations, misses, keeps_records=options.out is not None)
    cluster = None
    if options.executor is not None:
        recorder, misses = simulate_in_parallel(options, given, load, change, sent, show_progress=show_progress)
    else:
        with request_progress("replay", load.num_requests, show=show_progress) as advance, ExitStack() as stack:
            for number, simulation in enumerate(simulations):
                folder = events.folder(f"replica-{number}") if events else None
                stack.enter_context(recorded_events(options, simulation, folder))
            cluster = cluster_of(
                options,
                clock,
                simulations,
                max_concurrency=load.max_concurrency,
                on_progress=advance,
                on_sent=sent.add,
            )
            with within_the_clock():
                recorder = cluster.run(load)
    check_refusals(options, recorder)
    machine = stopwatch.facts()
    router = {} if cluster is None else {"router_s": round(cluster.router_ns / SECOND_NS, 6)}
    replicas = [
        _of_replica(server, each, own, own_load(load, number_sent), machine, _path(options, number))
        for number, (server, each, own, number_sent) in enumerate(
            zip(servers, misses, recorder.replicas, sent.counts, strict=True)
        )
    ]
    total = servers[0].summary(recorder, MissSources.total(servers[0].config, misses), load)
    parts = [replica.summary for replica in replicas]
    summary = summary_of_all(total, parts, recorder, [server.config for server in servers])
    summary |= sent.figures()
    if together:
        summary |= {"forward_passes": together.num_passes, "idle_rank_passes": together.num_idle_passes}
    summary["num_unsorted"] = workload.num_unsorted
    summary["trace_notes"] = list(workload.warnings)
    summary["verdicts"] = verdicts(summary, recorder, servers[0].config, load, len(servers))
    heading = heading_lines(servers[0], workload, summary)
    heading.insert(3, replica_line([server.config for server in servers], options))
    configuration = servers[0].configuration(options)
    kept = tuple(sent.records) if options.out else ()
    return ReplayedReplicas(summary, heading, recorder, configuration, machine | router, tuple(replicas), kept)


def _servers(options: ReplayOptions, change: ChangeStepTime | None) -> list[Server]:
    """Equal ones are made once. UserError, naming the replica if they differ: settings that cannot be."""
    made: dict[ReplayOptions, Server] = {}
    alone = replica_options(options)
    for number, each in enumerate(alone):
        try:
            made[each] = made.get(each) or Server.of(each, change)
        except UserError as error:
            where = f"{options.replicas}: replica {number}: " if options.replicas else ""
            raise UserError(f"{where}{error}") from None
    return [made[each] for each in alone]


def _of_replica(
    server: Server, misses: MissSources, recorder: Recorder, load: Load, machine: dict[str, Any], trace: str
) -> Replayed:
    options = replace(server.options, trace=trace, **(_SHAPED if server.options.trace != trace else {}))
    summary = server.summary(recorder, misses, load)
    summary["num_unsorted"] = 0
    summary["trace_notes"] = []
    summary["verdicts"] = []
    return Replayed(summary, [], recorder, server.configuration(options), machine)


_SHAPED = {
    field.name: field.default
    for subject in (FormatOptions, LoadOptions, SessionOptions)
    for field in fields_of(subject)
    if field.name not in ("ignore_eos", "seed", "strict")
}
"""Options that a replica's own trace has been through: the defaults, so that it is replayed as it was sent."""


def own_load(load: Load, num_requests: int) -> Load:
    """The ``num_requests`` that a replica was sent, as a load of its own."""
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


def replica_line(configs: Sequence[EngineConfig], options: ReplayOptions) -> str:
    """How many replicas there are, and who gives out the requests."""
    kinds = "equal" if len(set(configs)) == 1 else "unequal"
    config = f" {options.router_config}" if options.router_config else ""
    return f"data    parallel over {number_of(len(configs), f'{kinds} replica')}, router {options.router}{config}"


def _packed(records: list[RequestRecord]) -> bytes:
    """A trace in kvtwin's format, the same bytes whenever it is written."""
    packed = BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        write_lines(file, records, "what one replica was sent")
    return packed.getvalue()
