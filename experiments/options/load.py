"""The options that shape the load, with the names of ``vllm bench serve``, and the load that they ask for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.experiments.options.sessions import add_session_arguments, play_sessions
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.load_shaping import first_requests, scale_rate, set_request_rate, set_samples
from kvtwin.workloads.request_record import MOST_SAMPLES, RequestRecord
from kvtwin.workloads.sessions import PlayedSessions
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

_RATE = Number(1e-9, 1e9)
BURSTINESS = Number(1e-3, 1e6)
"""Within these limits gamma distributed gaps neither vanish nor overflow."""


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """What is sent, and when."""
    group = parser.add_argument_group("load (as in vllm bench serve)")
    add = group.add_argument
    add("--num-prompts", type=Whole(), metavar="N", help="only the first N requests")
    add(
        "--warmup-requests",
        type=Whole(0),
        default=0,
        metavar="N",
        help="serve the first N requests without counting them",
    )
    add(
        "--rate-scale",
        type=_RATE,
        default=1.0,
        metavar="X",
        help="replay X times as fast (0.5: half the rate)",
    )
    add(
        "--request-rate",
        type=replace(_RATE, infinite=True),
        metavar="RPS",
        help="new arrival times at this rate instead of the trace's; inf: all at once",
    )
    add(
        "--burstiness",
        type=BURSTINESS,
        default=1.0,
        metavar="B",
        help="with --request-rate or --session-rate, 1: Poisson arrivals; below 1: burstier",
    )
    add(
        "--max-concurrency",
        type=Whole(),
        metavar="N",
        help="closed loop of N clients; arrival times are ignored unless --request-rate or --rate-scale is given",
    )
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="outputs end by length; with --no-ignore-eos by an EOS token, which async scheduling sees a step late",
    )
    add(
        "--parallel-samples",
        type=Whole(1, MOST_SAMPLES),
        metavar="N",
        help="ask for N samples of every prompt (the API's n) instead of as many as the trace says",
    )
    add("--seed", type=Whole(0), default=0, metavar="N", help="of drawn arrival times, sessions and accepted drafts")
    add("--strict", action="store_true", help="stop at the first request that cannot be served, instead of counting it")
    add_session_arguments(parser)


@dataclass(frozen=True)
class Load:
    """What is sent: a workload with its arrival times shaped. Each iteration starts anew."""

    workload: Workload | PlayedSessions
    num_requests: int
    rate_scale: float
    request_rate: float | None
    session_rate: float | None
    burstiness: float
    max_concurrency: int | None
    seed: int
    parallel_samples: int | None = None
    """Samples of every prompt; None: what the trace says."""

    @property
    def ignores_arrivals(self) -> bool:
        """Whether clients send as soon as they may."""
        asked_for = self.request_rate is not None or self.session_rate is not None or self.rate_scale != 1.0
        return self.max_concurrency is not None and not asked_for

    def __iter__(self) -> Iterator[RequestRecord]:
        records = first_requests(self.workload, self.num_requests)
        if self.parallel_samples is not None:
            records = set_samples(records, self.parallel_samples)
        if self.ignores_arrivals:
            return set_request_rate(records, self.num_requests, math.inf)
        if self.request_rate is not None:
            return set_request_rate(records, self.num_requests, self.request_rate, self.burstiness, self.seed)
        if self.rate_scale != 1.0:
            return scale_rate(records, self.rate_scale)
        return records


def shape_load(args: argparse.Namespace, workload: Workload) -> Load:
    """The load of the command line. UserError: settings that exclude each other, or arrivals beyond the clock."""
    if args.request_rate is not None and args.rate_scale != 1.0:
        raise UserError("--request-rate and --rate-scale exclude each other: one replaces, one scales arrival times")
    if args.burstiness != 1.0 and args.request_rate is None and args.session_rate is None:
        raise UserError("--burstiness: needs --request-rate or --session-rate")
    played = play_sessions(args, workload)
    if not workload.reader.has_session_starts and not (
        args.session_rate or args.concurrent_sessions or args.max_concurrency
    ):
        raise UserError(
            f"--session-rate: needed, because the sessions of a {workload.format_name} file have no start times "
            "(inf: all at once); or --concurrent-sessions, or --max-concurrency"
        )
    sent = played or workload
    num_requests = min(len(sent), args.num_prompts or len(sent))
    if sent.last_arrival_ns > LAST_NS * args.rate_scale:
        raise UserError(f"--rate-scale: {args.rate_scale:g} stretches the trace beyond 292 years")
    if args.request_rate is not None and num_requests / args.request_rate > LAST_NS / SECOND_NS:
        raise UserError(f"--request-rate: {args.request_rate:g} stretches the trace beyond 292 years")
    return Load(
        sent,
        num_requests,
        args.rate_scale,
        args.request_rate,
        args.session_rate,
        args.burstiness,
        args.max_concurrency,
        args.seed,
        args.parallel_samples,
    )
