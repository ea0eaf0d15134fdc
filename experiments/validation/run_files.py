"""The folder of a validation's run, of the same shape for both runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtwin.experiments.misses.sources import MissSources
from kvtwin.experiments.records.folder import run_files
from kvtwin.experiments.runs.facts import run_configuration, run_context
from kvtwin.experiments.runs.host_figures import host_figures
from kvtwin.experiments.runs.replica_summary import summary_of_all
from kvtwin.experiments.runs.replicas import own_load
from kvtwin.experiments.runs.summary import summarise
from kvtwin.experiments.validation.serving import Serving
from kvtwin.experiments.validation.settings import ServerSetting, Setting
from kvtwin.sim.cluster.recording import ClusterRecorder
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.load import Load


@dataclass(frozen=True)
class RunKind:
    """Which of both runs it is."""

    step_time: dict[str, Any]
    """What the configuration says of the steps' times."""
    links: Sequence[HostLink | None]
    """Of each server, what copies to and from the host are said to take; None: they are measured, or there are none."""


def files_of(
    setting: Setting,
    serving: Serving,
    recorder: Recorder,
    kind: RunKind,
    machine: dict[str, Any],
    of_servers: Mapping[str, Sequence[bytes]],
) -> dict[str, bytes]:
    """The folder's files by name; of replicas, each has a folder in it. ``of_servers`` has files that a server has."""
    servers, misses = setting.servers, serving.misses
    if not isinstance(recorder, ClusterRecorder):
        summary = _summary(setting, servers[0], recorder, misses[0], setting.load, kind.links[0])
        files = _files(setting, servers[0], recorder, summary, kind, machine)
        return files | {name: contents[0] for name, contents in of_servers.items()}
    assert serving.sent is not None
    parts = [
        _summary(setting, *each)
        for each in zip(
            servers,
            recorder.replicas,
            misses,
            (own_load(setting.load, count) for count in serving.sent.counts),
            kind.links,
            strict=True,
        )
    ]
    everything = MissSources.total(servers[0].config, misses)
    total = _summary(setting, servers[0], recorder, everything, setting.load, kind.links[0])
    total = summary_of_all(total, parts, recorder, [server.config for server in servers])
    files = _files(setting, servers[0], recorder, total | serving.sent.figures(), kind, machine)
    for number, (server, own, part) in enumerate(zip(servers, recorder.replicas, parts, strict=True)):
        of_replica = _files(setting, server, own, part, kind, machine)
        of_replica |= {name: contents[number] for name, contents in of_servers.items()}
        files |= {f"replica-{number}/{name}": content for name, content in of_replica.items()}
    return files


def _summary(
    setting: Setting,
    server: ServerSetting,
    recorder: Recorder,
    misses: MissSources,
    load: Load,
    link: HostLink | None,
) -> dict[str, Any]:
    context = run_context(server.sizing, load, recorder)
    summary = summarise(recorder, server.config, server.sizing.plan, context, setting.options)
    summary |= host_figures(recorder, server.sizing, link) | misses.figures()
    summary |= {"num_warmup_requests": setting.options.warmup_requests, "num_unsorted": setting.workload.num_unsorted}
    summary["trace_notes"] = list(setting.workload.warnings)
    return summary | {"verdicts": []}


def _files(
    setting: Setting,
    server: ServerSetting,
    recorder: Recorder,
    summary: dict[str, Any],
    kind: RunKind,
    machine: dict[str, Any],
) -> dict[str, bytes]:
    options, device = setting.options, setting.model.device_name
    configuration = run_configuration("validate", options, server.sizing, device, server.config, kind.step_time)
    return run_files(recorder, configuration, summary, machine)
