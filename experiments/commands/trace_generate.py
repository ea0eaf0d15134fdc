"""``kvtwin trace generate``: write a synthetic workload to a file."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.load import BURSTINESS
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.workloads.distributions import Constant, Distribution, LogNormal
from kvtwin.workloads.formats.json_rows import LAST_NS
from kvtwin.workloads.formats.native import write_workload
from kvtwin.workloads.generator import SyntheticWorkload, SystemPrompts
from kvtwin.workloads.request_record import MOST_SAMPLES
from kvtwin.workloads.time_units import SECOND_NS

_LENGTH = Whole(1, 10_000_000)
_MOST_SYSTEM_TOKENS = 10_000_000
"""They are held in memory."""

EPILOGUE = """\
Conversations start as a gamma process (Poisson by default). Each takes one of the shared system prompts, and each
turn's prompt repeats the conversation so far, so a prefix cache can hit it. Every token is known.

examples:
  kvtwin trace generate chat.jsonl.gz --num-prompts 2000 --conversations-per-s 5 --turns 4 --think-time-s 8
  kvtwin trace generate agents.jsonl.gz --turns 3 --tool-calls 12 --tool-time-s 5 --think-time-s 60
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``trace generate``."""
    add = parser.add_argument
    add("out", metavar="FILE", type=Path, help="file to write, .jsonl or .jsonl.gz; nothing is overwritten")
    add("--num-prompts", type=Whole(), default=1000, metavar="N", help="requests")
    add(
        "--conversations-per-s",
        type=Number(1e-6, 1e9),
        default=2.0,
        metavar="RATE",
        help="new conversations per second",
    )
    add("--burstiness", type=BURSTINESS, default=1.0, metavar="B", help="1: Poisson arrivals; below 1: burstier")
    add("--user-tokens", type=Whole(), default=150, metavar="TOKENS", help="median new tokens of a turn")
    add("--output-tokens", type=Whole(), default=250, metavar="TOKENS", help="median output of a turn")
    add("--length-sigma", type=Number(0, 10), default=0.8, metavar="S", help="spread of the log-normal lengths")
    add("--max-tokens", type=_LENGTH, default=8000, metavar="TOKENS", help="most new or output tokens of a turn")
    add("--system-prompts", type=Whole(0, 10_000), default=4, metavar="N", help="shared system prompts; 0: none")
    add("--system-prompt-tokens", type=_LENGTH, default=500, metavar="TOKENS", help="length of each")
    add("--zipf", type=Number(0, 20), default=1.0, metavar="EXPONENT", help="popularity of system prompts; 0: equal")
    add("--turns", type=Whole(1, 10_000), default=1, metavar="N", help="turns of every conversation")
    add("--think-time-s", type=Number(0, 3600), default=10.0, metavar="S", help="median pause before a later turn")
    add("--think-time-sigma", type=Number(0, 10), default=0.6, metavar="S", help="spread of all log-normal pauses")
    add(
        "--tool-calls", type=Whole(0, 1_000), default=0, metavar="N", help="requests more of every turn, as agents make"
    )
    add("--tool-tokens", type=Whole(), default=400, metavar="TOKENS", help="median output of a tool")
    add("--tool-time-s", type=Number(0, 3600), default=2.0, metavar="S", help="median pause while a tool runs")
    add("--parallel-samples", type=Whole(1, MOST_SAMPLES), default=1, metavar="N", help="samples of every prompt (n)")
    add("--seed", type=Whole(0), default=0, metavar="N", help="of all random numbers: equal seeds, equal files")


def run(args: argparse.Namespace) -> int:
    """Write the file; nothing is overwritten."""
    if os.path.lexists(args.out):
        raise UserError(f"{args.out}: already exists; name a new file")
    if args.system_prompts * args.system_prompt_tokens > _MOST_SYSTEM_TOKENS:
        raise UserError(f"--system-prompt-tokens: expected at most {_MOST_SYSTEM_TOKENS:,} in all system prompts")
    if args.num_prompts / args.conversations_per_s > LAST_NS / SECOND_NS:
        raise UserError(f"--conversations-per-s: {args.conversations_per_s:g} stretches the workload beyond 292 years")
    workload = SyntheticWorkload(
        num_requests=args.num_prompts,
        conversations_per_s=args.conversations_per_s,
        burstiness=args.burstiness,
        user_tokens=LogNormal(args.user_tokens, args.length_sigma, 1, args.max_tokens),
        output_tokens=LogNormal(args.output_tokens, args.length_sigma, 1, args.max_tokens),
        system_prompts=_system_prompts(args),
        turns=Constant(args.turns),
        think_time_ms=_pause(args.think_time_s, args.think_time_sigma),
        tool_calls=Constant(args.tool_calls),
        tool_tokens=LogNormal(args.tool_tokens, args.length_sigma, 1, args.max_tokens),
        tool_time_ms=_pause(args.tool_time_s, args.think_time_sigma),
        n=args.parallel_samples,
        seed=args.seed,
    )
    try:
        num_written = write_workload(args.out, workload, description="kvtwin trace generate")
    except OSError as error:
        raise UserError(f"{args.out}: {error.strerror or error}") from None
    print(f"{args.out}: {num_written:,} requests; `kvtwin trace inspect {args.out}` tells more")
    return 0


def _pause(median_s: float, sigma: float) -> Distribution:
    return LogNormal(1000 * median_s, sigma, 0, 3_600_000) if median_s else Constant(0)


def _system_prompts(args: argparse.Namespace) -> SystemPrompts | None:
    if not args.system_prompts:
        return None
    return SystemPrompts(
        number=args.system_prompts, length_tokens=Constant(args.system_prompt_tokens), zipf_exponent=args.zipf
    )
