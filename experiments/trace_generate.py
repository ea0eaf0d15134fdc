"""``kvtwin trace generate``: write a synthetic workload to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.errors import UserError
from workloads import write_workload
from workloads.distributions import Constant, LogNormal
from workloads.generator import SyntheticWorkload, SystemPrompts

EPILOGUE = """\
Conversations start as a gamma process (Poisson by default). Each takes one of the shared system prompts, and each
turn's prompt repeats the conversation so far, so a prefix cache can hit it. Every token is known.

example:
  kvtwin trace generate chat.jsonl.gz --num-prompts 2000 --conversations-per-s 5 --turns 4 --think-time-s 8
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``trace generate``."""
    add = parser.add_argument
    add("out", type=Path, help="file to write, .jsonl or .jsonl.gz")
    add("--num-prompts", type=int, default=1000, metavar="N", help="requests (1000)")
    add("--conversations-per-s", type=float, default=2.0, metavar="RATE", help="new conversations per second (2)")
    add("--burstiness", type=float, default=1.0, metavar="B", help="1: Poisson; below 1 burstier")
    add("--user-tokens", type=float, default=150, metavar="TOKENS", help="median new tokens of a turn (150)")
    add("--output-tokens", type=float, default=250, metavar="TOKENS", help="median output of a turn (250)")
    add("--length-sigma", type=float, default=0.8, metavar="S", help="spread of the log-normal lengths (0.8)")
    add("--max-tokens", type=int, default=8000, metavar="TOKENS", help="most new or output tokens of a turn (8000)")
    add("--system-prompts", type=int, default=4, metavar="N", help="shared system prompts, 0 for none (4)")
    add("--system-prompt-tokens", type=int, default=500, metavar="TOKENS", help="length of each (500)")
    add("--zipf", type=float, default=1.0, metavar="EXPONENT", help="popularity of system prompts; 0: equal (1)")
    add("--turns", type=int, default=1, metavar="N", help="turns of every conversation (1)")
    add("--think-time-s", type=float, default=10.0, metavar="S", help="median pause before a later turn (10)")
    add("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    """Write the file; nothing is overwritten."""
    if args.out.exists():
        raise UserError(f"{args.out}: already exists; name a new file")
    for name in ("num_prompts", "turns", "max_tokens", "system_prompt_tokens", "user_tokens", "output_tokens"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name.replace('_', '-')}: expected at least 1, got {getattr(args, name)}")
    for name in ("system_prompts", "zipf", "think_time_s", "length_sigma", "seed"):
        if getattr(args, name) < 0:
            raise UserError(f"--{name.replace('_', '-')}: expected at least 0, got {getattr(args, name)}")
    try:
        workload = SyntheticWorkload(
            num_requests=args.num_prompts,
            conversations_per_s=args.conversations_per_s,
            burstiness=args.burstiness,
            user_tokens=LogNormal(args.user_tokens, args.length_sigma, 1, args.max_tokens),
            output_tokens=LogNormal(args.output_tokens, args.length_sigma, 1, args.max_tokens),
            system_prompts=_system_prompts(args),
            turns=Constant(args.turns),
            think_time_ms=LogNormal(1000 * args.think_time_s, 0.6, 0, 3_600_000),
            seed=args.seed,
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    num_written = write_workload(args.out, workload, description="kvtwin trace generate")
    print(f"{args.out}: {num_written:,} requests; `kvtwin trace inspect {args.out}` tells more")
    return 0


def _system_prompts(args: argparse.Namespace) -> SystemPrompts | None:
    if not args.system_prompts:
        return None
    return SystemPrompts(args.system_prompts, Constant(args.system_prompt_tokens), args.zipf)
