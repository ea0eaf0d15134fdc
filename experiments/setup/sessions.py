"""From the options to a workload whose sessions are played as they say."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.sessions import PlayedSessions
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload


def play_sessions(options: ReplayOptions, workload: Workload) -> PlayedSessions | None:
    """The workload with its sessions played as the command line says; None if it says nothing about them.

    UserError: options that exclude each other, or turns beyond the clock.
    """
    pause_ns = _pause(options)
    if pause_ns is None and not (options.num_sessions or options.session_rate or options.concurrent_sessions):
        return None
    if options.session_rate is not None and options.concurrent_sessions is not None:
        raise UserError("--session-rate and --concurrent-sessions cannot be combined: both set when sessions start")
    if options.session_rate is not None and options.rate_scale != 1.0:
        raise UserError(
            "--session-rate and --rate-scale cannot be combined: one replaces arrival times, the other scales them"
        )
    if options.request_rate is not None:
        raise UserError("--request-rate: the workload has sessions; use --session-rate")
    if options.session_rate is not None and len(workload) / options.session_rate > LAST_NS / SECOND_NS:
        raise UserError(f"--session-rate: {options.session_rate:g} stretches the trace beyond 292 years")
    try:
        played = PlayedSessions(
            workload,
            turns=workload.turns,
            num_sessions=options.num_sessions,
            session_rate=options.session_rate,
            burstiness=options.burstiness,
            concurrent_sessions=options.concurrent_sessions,
            pause_ns=pause_ns,
            seed=options.seed,
        )
    except OverflowError:
        raise UserError("the pauses between turns stretch the trace beyond 292 years") from None
    if pause_ns is not None and not played.has_later_turns:
        raise UserError("--think-time, -scale, -cap: no request of the trace waits for the answer to another one")
    return played


def _pause(options: ReplayOptions) -> Callable[[int], int] | None:
    """From a pause of the trace to the pause that is played; None where they are equal."""
    scale, cap_s = options.think_time_scale, options.think_time_cap
    if options.think_time is not None:
        if scale is not None or cap_s is not None:
            raise UserError(
                "--think-time: replaces every pause, so --think-time-scale and --think-time-cap have no effect"
            )
        fixed_ns = round(options.think_time * SECOND_NS)
        return lambda _recorded_ns: fixed_ns
    if scale is None and cap_s is None:
        return None
    cap_ns = math.inf if cap_s is None else round(cap_s * SECOND_NS)
    return lambda recorded_ns: int(min(recorded_ns if scale is None else round(recorded_ns * scale), cap_ns))
