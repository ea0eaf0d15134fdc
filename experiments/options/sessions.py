"""The options that say how the sessions of a workload are played: which of them, from when on, with what pauses."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.sessions import PlayedSessions
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

_PAUSE_S = Number(0, 1e9)


def add_session_arguments(parser: argparse.ArgumentParser) -> None:
    """How conversations and agents are played."""
    group = parser.add_argument_group("sessions (conversations and agents, whose turns wait for the answers before)")
    add = group.add_argument
    add("--num-sessions", type=Whole(), metavar="N", help="only N sessions, drawn at random (--seed)")
    add(
        "--session-rate",
        type=Number(1e-9, 1e9, infinite=True),
        metavar="RATE",
        help="sessions start at this rate per second, drawn as --burstiness says; inf: all at once",
    )
    add(
        "--concurrent-sessions",
        type=Whole(),
        metavar="N",
        help="N users play the sessions one after another; 1: each session alone",
    )
    add("--think-time", type=_PAUSE_S, metavar="S", help="every pause between an answer and the next turn, in seconds")
    add("--think-time-scale", type=Number(0, 1e6), metavar="X", help="stretch the pauses of the trace")
    add("--think-time-cap", type=_PAUSE_S, metavar="S", help="longest pause, in seconds; longer ones are cut to it")


def play_sessions(args: argparse.Namespace, workload: Workload) -> PlayedSessions | None:
    """The workload with its sessions played as the command line says; None if it says nothing about them.

    UserError: options that exclude each other, or turns beyond the clock.
    """
    pause_ns = _pause(args)
    if pause_ns is None and not (args.num_sessions or args.session_rate or args.concurrent_sessions):
        return None
    if args.session_rate is not None and args.concurrent_sessions is not None:
        raise UserError("--session-rate and --concurrent-sessions exclude each other: both say when sessions start")
    if args.session_rate is not None and args.rate_scale != 1.0:
        raise UserError("--session-rate and --rate-scale exclude each other: one replaces, one scales arrival times")
    if args.request_rate is not None:
        raise UserError("--request-rate: draws the arrival of every request; with sessions use --session-rate")
    if args.session_rate is not None and len(workload) / args.session_rate > LAST_NS / SECOND_NS:
        raise UserError(f"--session-rate: {args.session_rate:g} stretches the trace beyond 292 years")
    try:
        played = PlayedSessions(
            workload,
            num_sessions=args.num_sessions,
            session_rate=args.session_rate,
            burstiness=args.burstiness,
            concurrent_sessions=args.concurrent_sessions,
            pause_ns=pause_ns,
            seed=args.seed,
        )
    except OverflowError:
        raise UserError("the pauses between turns stretch the trace beyond 292 years") from None
    if pause_ns is not None and not played.has_later_turns:
        raise UserError("--think-time, -scale, -cap: no request of the trace waits for the answer to another one")
    return played


def _pause(args: argparse.Namespace) -> Callable[[int], int] | None:
    """From a pause of the trace to the pause that is played; None where they are equal."""
    scale, cap_s = args.think_time_scale, args.think_time_cap
    if args.think_time is not None:
        if scale is not None or cap_s is not None:
            raise UserError("--think-time: replaces every pause, so --think-time-scale and --think-time-cap do nothing")
        fixed_ns = round(args.think_time * SECOND_NS)
        return lambda _recorded_ns: fixed_ns
    if scale is None and cap_s is None:
        return None
    cap_ns = math.inf if cap_s is None else round(cap_s * SECOND_NS)
    return lambda recorded_ns: int(min(recorded_ns if scale is None else round(recorded_ns * scale), cap_ns))
