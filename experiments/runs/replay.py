"""A replay: a simulated server on a trace, and its results."""

from __future__ import annotations

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.records.event_recording import EventFolder, recorded_events
from kvtwin.experiments.runs.facts import Stopwatch, request_progress
from kvtwin.experiments.runs.heading import heading_lines
from kvtwin.experiments.runs.loads import opened_load, within_the_clock
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.runs.replicas import replay_replicas
from kvtwin.experiments.runs.server import ChangeStepTime, Server, check_refusals
from kvtwin.experiments.runs.verdicts import verdicts
from kvtwin.experiments.setup.engine import SETTINGS, flag_of
from kvtwin.experiments.setup.replicas import has_replicas
from kvtwin.sim.compiled_settings import reasons_against
from kvtwin.sim.serving import Observe
from kvtwin.workloads.workload import Workload


def replay(
    options: ReplayOptions,
    workload: Workload | None = None,
    *,
    show_progress: bool = False,
    observe: Observe | None = None,
    events: EventFolder | None = None,
    change: ChangeStepTime | None = None,
) -> Replayed:
    """Simulate a server on the trace of ``options``, or on ``workload``.

    ``observe`` makes an observer of the scheduler, ``change`` another step-time model of a server's own. What
    ``--events`` and ``--kv-events`` ask for is written into the folder ``events``. UserError: settings that cannot be.
    """
    if has_replicas(options):
        return replay_replicas(
            options, workload, show_progress=show_progress, observe=observe, events=events, change=change
        )
    if options.executor is not None:
        raise UserError("--executor: needs --data-parallel-size or --replicas: one server runs in one process")
    server = Server.of(options, change)
    workload, load = opened_load(options, workload, show_progress=show_progress)
    misses = MissSources(server.config)
    stopwatch = Stopwatch()
    with request_progress("replay", load.num_requests, show=show_progress) as advance:
        simulation = server.simulation(
            misses, max_concurrency=load.max_concurrency, on_progress=advance, observe=observe
        )
        with recorded_events(options, simulation, events), within_the_clock():
            recorder = simulation.run(load)
    check_refusals(options, recorder)
    machine = stopwatch.facts() | {"decided_by": simulation.decided_by}
    summary = server.summary(recorder, misses, load)
    summary["num_unsorted"] = workload.num_unsorted
    summary["trace_notes"] = list(workload.warnings)
    summary["verdicts"] = verdicts(summary, recorder, server.config, load)
    heading = heading_lines(server, workload, summary)
    if reasons := [flag_of(name) if name in SETTINGS else name for name in reasons_against(server.config)]:
        heading.append(f"Decided step by step by the plain scheduler, which takes longer: {', '.join(reasons)}")
    return Replayed(summary, heading, recorder, server.configuration(options), machine)
