"""From the options to the load that they ask for."""

from __future__ import annotations

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.setup.sessions import play_sessions
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.load import Load
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload


def shape_load(options: ReplayOptions, workload: Workload) -> Load:
    """The load of the command line. UserError: settings that exclude each other, or arrivals beyond the clock."""
    if options.request_rate is not None and options.rate_scale != 1.0:
        raise UserError(
            "--request-rate and --rate-scale cannot be combined: one replaces arrival times, the other scales them"
        )
    if options.burstiness != 1.0 and options.request_rate is None and options.session_rate is None:
        raise UserError("--burstiness: needs --request-rate or --session-rate")
    played = play_sessions(options, workload)
    starts = (options.session_rate, options.concurrent_sessions, options.max_concurrency, options.request_rate)
    if not workload.has_starts and not any(starts):
        raise UserError(
            f"--session-rate: needed, because {options.trace} ({workload.format_name}) has no start times (inf: all at "
            "once); or --request-rate, --concurrent-sessions, --max-concurrency"
        )
    sent = played or workload
    num_requests = min(len(sent), options.num_prompts or len(sent))
    if sent.last_arrival_ns > LAST_NS * options.rate_scale:
        raise UserError(f"--rate-scale: {options.rate_scale:g} stretches the trace beyond 292 years")
    if options.request_rate is not None and num_requests / options.request_rate > LAST_NS / SECOND_NS:
        raise UserError(f"--request-rate: {options.request_rate:g} stretches the trace beyond 292 years")
    return Load(
        sent,
        num_requests,
        options.rate_scale,
        options.request_rate,
        options.session_rate,
        options.burstiness,
        options.max_concurrency,
        options.seed,
        options.parallel_samples,
    )
