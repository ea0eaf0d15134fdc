"""A server's run replayed: its requests at the times at which they came, and what came of them side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.device import DeviceOptions
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.records import kv_event_file
from kvtwin.experiments.records.event_recording import EventFolder
from kvtwin.experiments.runs.kept import columns_of
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.runs.spread import Spread, spread_of
from kvtwin.experiments.server_runs.latencies import compare_latencies
from kvtwin.experiments.server_runs.limits import GPU_BLOCK_SIZES, with_limits
from kvtwin.experiments.server_runs.served import ServedRequest, arriving_as_served, served_in_run
from kvtwin.experiments.server_validation.kv_state import KVLog, compare_kv_logs, read_kv_log
from kvtwin.experiments.server_validation.metrics_text import COUNTERS
from kvtwin.experiments.server_validation.record import ServerRecord, read_server_record
from kvtwin.experiments.setup.replicas import has_replicas
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.workloads.formats.in_memory import workload_of
from kvtwin.workloads.request_record import RequestRecord

_SPREAD = {"mean TTFT": "mean_ttft_ms", "mean TPOT": "mean_tpot_ms", "mean E2E": "mean_e2el_ms", "makespan": "duration"}
"""Figures of latencies, and the keys of a summary that have them in ms or s."""

UNCHECKED = (
    "steps: a server does not say how long each took, nor what it scheduled in it",
    "which request was preempted, and which blocks each had",
)


def validate_server_run(options: ValidateOptions, folder: Path) -> dict[str, Any]:
    """The figures of the server's run in ``folder`` beside those of its simulation.

    UserError: a setting that cannot be, other requests, or a server that the record contradicts.
    """
    record = read_server_record(folder)
    asked = with_limits(str(folder), record.limits, _replay_options(options))
    records = as_served(islice(open_trace(asked.trace, asked), asked.num_prompts), record.served)
    simulated, kv_events = _simulate(replace(asked, kv_events=record.kv_events is not None), records)
    spread = spread_of(simulated.summary, asked, workload_of(records), show_progress=True)
    facts: dict[str, Any] = {"heading": _heading(folder, record, simulated)}
    facts["counters"] = _counters(record, simulated, spread)
    facts["latencies"] = _latencies(record.served, simulated, spread)
    facts["kv_events"] = None
    unchecked = list(UNCHECKED)
    if record.kv_events and kv_events:
        facts["kv_events"] = compare_kv_logs(read_kv_log(record.kv_events), kv_events)
        if any(each.output_token_ids is None for each in records):
            unchecked.append("blocks of outputs, whose tokens the trace does not have")
    else:
        unchecked.append("the cache's content: there is no kv_events.jsonl or kv_events.msgpack")
    if record.counters is None:
        unchecked.append("hits and preemptions: there is no metrics-before.txt and metrics-after.txt")
    if record.limits.get("block_size", 16) not in GPU_BLOCK_SIZES:
        unchecked.append(f"the block size of {record.limits['block_size']} tokens, which vLLM planned")
    if "num_gpu_blocks" not in record.limits:
        unchecked.append("the number of blocks: the record does not have it")
    return facts | {"unchecked": unchecked}


def as_served(records: Iterator[RequestRecord], served: Sequence[ServedRequest]) -> list[RequestRecord]:
    """The records of a workload as they were served: at these times, with outputs as long as they were.

    UserError: they are not the same requests.
    """
    copies = sorted(
        (replace(record, think_time_ns=None, after=()) for record in records), key=lambda record: record.arrival_ns
    )
    for record, request in zip(copies, served, strict=False):
        if record.output_tokens != request.output_tokens and request.output_tokens > 0:
            known = record.output_token_ids
            record.output_tokens = request.output_tokens
            record.output_token_ids = (
                known[: request.output_tokens] if known and len(known) >= request.output_tokens else None
            )
    return arriving_as_served(copies, served)


def _replay_options(options: ValidateOptions) -> ReplayOptions:
    """Those of the simulation. UserError: no model or GPU, or what only a run on a device takes."""
    defaults = ValidateOptions(trace=options.trace)
    if options.gpu is None or options.model == defaults.model:
        raise UserError("--server-run: needs --model and --gpu, and the other options of the server")
    for name in _ONLY_ON_A_DEVICE:
        if getattr(options, name) != getattr(defaults, name):
            raise UserError(f"--{name.replace('_', '-')}: not with --server-run, which runs nothing on a device")
    if has_replicas(options):
        raise UserError("--data-parallel-size, --replicas: not with --server-run, which compares one engine")
    if options.out is not None:
        raise UserError("--out: not with --server-run; --json prints all figures")
    values = {field.name: getattr(options, field.name) for field in fields(ReplayOptions)}
    return ReplayOptions(**values | {"step_time": options.step_time or "roofline", "out": None})


_ONLY_ON_A_DEVICE = (*(field.name for field in fields(DeviceOptions)), "length_scale", "temperature", "debug")


def _simulate(options: ReplayOptions, records: list[RequestRecord]) -> tuple[Replayed, KVLog | None]:
    """The simulation, and its log of KV events, if options want one."""
    workload = workload_of(records)
    if not options.kv_events:
        return replay(options, workload, show_progress=True), None
    with TemporaryDirectory(prefix="kvtwin-") as name:
        folder = Path(name)
        simulated = replay(options, workload, show_progress=True, events=EventFolder(folder))
        return simulated, read_kv_log(folder / kv_event_file.NAME)


def _heading(folder: Path, record: ServerRecord, simulated: Replayed) -> list[str]:
    return [
        *simulated.heading,
        f"server run  {folder}: {len(record.served):,} requests, at the times at which they came",
    ]


def _counters(record: ServerRecord, simulated: Replayed, spread: Spread) -> dict[str, dict[str, Any]]:
    if record.counters is None:
        return {}
    facts = {}
    for key in COUNTERS:
        if key in record.counters and simulated.summary.get(key) is not None:
            facts[key] = _figure(record.counters[key], simulated.summary[key], spread.get(key))
    return facts


def _latencies(served: Sequence[ServedRequest], simulated: Replayed, spread: Spread) -> dict[str, dict[str, Any]]:
    columns = columns_of(simulated.recorder.requests)
    facts = {}
    for each in compare_latencies(served, served_in_run(columns)):
        bounds = None
        with suppress(KeyError):
            low_high = spread[_SPREAD[each.name]]
            factor = 1000 if each.name in ("mean TTFT", "mean E2E") else 1  # the summary has ms
            bounds = low_high and (low_high[0] / factor, low_high[1] / factor)
        facts[each.name] = _figure(each.measured, each.simulated, bounds) | {
            "unit": each.unit,
            "error": each.error,
        }
    return facts


def _figure(measured: float, simulated: float, spread: tuple[float, float] | None) -> dict[str, Any]:
    """Both, and whether what was measured lies where the simulation would be with other step times."""
    inside = None if spread is None else bool(spread[0] <= measured <= spread[1])
    return {"measured": measured, "simulated": simulated, "spread": spread, "inside": inside}
