"""Replicas that have nothing to do with each other, each simulated by a worker of a Dask cluster: the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.replica_part import ReplicaPart, simulate_part
from kvtwin.experiments.runs.sent_records import SentRecords
from kvtwin.experiments.runs.server import ChangeStepTime
from kvtwin.experiments.setup.dask import dask_client
from kvtwin.experiments.setup.replicas import replica_options, router_of
from kvtwin.sim.cluster.destinations import Destinations
from kvtwin.sim.cluster.one_of_several import Event, Send
from kvtwin.sim.cluster.recording import ClusterRecorder, Routing
from kvtwin.sim.cluster.router import Knows
from kvtwin.workloads.load import Load
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.workload import Workload


def check_independence(options: ReplayOptions, load: Load) -> None:
    """UserError: what one replica does decides over another, or something is asked for that workers do not keep."""
    router = router_of(options, options.seed)
    for name in ("events", "kv_events"):
        if getattr(options, name):
            raise UserError(f"--executor: not with --{name.replace('_', '-')}, which writes while it runs")
    if router.knows is Knows.SERVERS:
        raise UserError(f"--executor: {router.name} looks at all replicas, so they run in one process")
    if load.max_concurrency is not None:
        raise UserError("--executor: --max-concurrency counts the requests of all replicas, so they run in one process")
    for record in load:
        if record.after:
            raise UserError(f"--executor: {record.source}: waits for other sessions, so replicas run in one process")
        if record.waits and router.knows is not Knows.THE_REQUEST:
            raise UserError(
                f"--executor: {record.source}: waits for an answer, which decides where {router.name} sends others; "
                "so replicas run in one process (--router session does without)"
            )


def simulate_in_parallel(
    options: ReplayOptions,
    workload: Workload | None,
    load: Load,
    change: ChangeStepTime | None,
    sent: SentRecords,
    *,
    show_progress: bool,
) -> tuple[ClusterRecorder, list[MissSources]]:
    """What :meth:`~kvtwin.sim.cluster.cluster.Cluster.run` records, and the misses; ``sent`` hears of all sends.

    When sessions wait for answers, only a first simulation tells when they send: then there are two. (Where several
    replicas end something at the same nanosecond, and a session answers to that at once, nobody knows who was first:
    the first replica counts as it.) UserError: a replica cannot be simulated, or there is no cluster.
    """
    check_independence(options, load)
    records, count = list(load), len(replica_options(options))
    run = _Workers(options, workload, change, count, show_progress=show_progress)
    with dask_client("--executor", options.executor or "", count) as client:
        if any(record.waits for record in records):
            sends = _sends([part.events for part in run.on(client, ())])
        else:
            destinations = Destinations(router_of(options, options.seed), count)
            sends = [
                Send(record.arrival_ns, position, destinations.of(record)) for position, record in enumerate(records)
            ]
        parts = run.on(client, sends)
    recorder = _together(parts, sends, records, sent)
    return recorder, [part.misses for part in parts]


class _Workers:
    """A simulation of each replica."""

    def __init__(
        self,
        options: ReplayOptions,
        workload: Workload | None,
        change: ChangeStepTime | None,
        count: int,
        *,
        show_progress: bool,
    ) -> None:
        self._options = replace(options, executor=None, out=None)
        self._rest = workload, change
        self._count = count
        self._show_progress = show_progress

    def on(self, client: Any, sends: Sequence[Send]) -> list[ReplicaPart]:
        """In order of the replicas."""
        futures = [
            client.submit(simulate_part, self._options, number, sends, *self._rest, pure=False)
            for number in range(self._count)
        ]
        parts = []
        with progress("replay", "replicas", self._count, show=self._show_progress) as bar:
            for future in futures:
                part = future.result()
                if isinstance(part, str):
                    raise UserError(part)
                parts.append(part)
                bar.update(1)
        return parts


def _in_order(events: Sequence[Sequence[Event]]) -> Iterator[tuple[int, Event]]:
    """Those of all replicas as they happened, each with its replica."""
    numbered = [[(number, event) for event in each] for number, each in enumerate(events)]
    return merge(*numbered, key=lambda one: one[1].order)


def _sends(events: Sequence[Sequence[Event]]) -> list[Send]:
    return [Send(event.time_ns, event.position, replica) for replica, event in _in_order(events) if not event.is_end]


def _together(
    parts: Sequence[ReplicaPart], sends: Sequence[Send], records: Sequence[RequestRecord], sent: SentRecords
) -> ClusterRecorder:
    """What one run of all would have recorded."""
    served = {event.position for part in parts for event in part.events if event.is_served}
    own = [iter(part.own_cached_tokens) for part in parts]
    others = [iter(part.others_cached_tokens) for part in parts]
    routing = Routing()
    for send in sends:
        record, is_served = records[send.position], send.position in served
        cached = [
            next(others[number]) if number != send.replica else (next(own[number]) if is_served else 0)
            for number in range(len(parts))
        ]
        if is_served:
            routing.add(send.replica, cached)
        alone = replace(record, arrival_ns=send.time_ns, think_time_ns=None, after=(), data_parallel_rank=None)
        sent.add(send.replica, alone, record)
    num_open = peak = 0
    for _, event in _in_order([part.events for part in parts]):
        if event.is_served:
            num_open += -1 if event.is_end else 1
            peak = max(peak, num_open)
    num_unsent = len(records) - len(sends)
    recorders = [part.recorder for part in parts]
    end_ns = max(recorder.end_ns for recorder in recorders)
    for recorder in recorders:
        recorder.end_ns = end_ns
    return ClusterRecorder(recorders, routing, peak, num_unsent)
