"""``kvtwin limit``: the highest rate at which nothing is preempted, hits keep coming, and latencies are kept."""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from typing import Any

from tqdm import tqdm

from kvtwin.experiments.commands import replay
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.limits.bracket import RateGrid
from kvtwin.experiments.limits.search import Criterion, Search, find_limits
from kvtwin.experiments.limits.text import text_lines
from kvtwin.experiments.options.load import shape_load
from kvtwin.experiments.options.number_lists import shares
from kvtwin.experiments.options.output import output_settings
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.experiments.options.trace import open_trace
from kvtwin.experiments.runs.facts import PROGRESS_DELAY_S
from kvtwin.experiments.runs.latencies import percentile_name
from kvtwin.experiments.sweeps.executors import local_processes

EPILOGUE = """\
The rate is varied by --rate-scale, or by --request-rate or --session-rate where they are given, from which the search
starts. It is bisection: between the highest rate that held and the lowest that failed nothing was replayed, and a limit
is one only if what holds at a rate holds at lower ones. With --goodput, latencies at every percentile of
--metric-percentiles must be within their limits.

examples:
  kvtwin limit trace.jsonl --model meta-llama/Llama-3.1-8B --gpu l40s --memory-fractions 0.5,0.7,0.92
  kvtwin limit demo --gpu rtx-4090 --max-model-len 8192 --goodput ttft:500 tpot:50 --hit-rate-within 0.02

Exit code: 0; 1 when a server could not be replayed; 2 for a mistake in the input.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``limit``: those of ``replay``, and what to look for."""
    add = parser.add_argument_group("the limit").add_argument
    add("--memory-fractions", metavar="SHARES", help="such as 0.5,0.7,0.92 (else --gpu-memory-utilization)")
    add(
        "--hit-rate-within",
        type=Number(0, 1),
        metavar="X",
        help="the hit rate must be at most X below what a cache would hit that never evicts (0.02: two points)",
    )
    add(
        "--precision",
        type=Number(0.001, 1),
        default=0.05,
        metavar="SHARE",
        help="how far apart the highest rate that held and the lowest that failed may be",
    )
    add("--workers", type=Whole(1, 1024), metavar="N", help="processes of this machine (else one per CPU)")
    replay.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Look for the limits, and print them. Exit code 1 when a server could not be replayed."""
    if args.out:
        raise UserError("--out: replays of a search are not kept; replay the rate that you want")
    rate_option, base = _rate(args)
    load = shape_load(args, open_trace(args))
    grid = RateGrid.of_precision(base, args.precision)
    criteria = _criteria(args)
    searches = [Search(asked, rate_option, grid, criteria) for asked in _servers(args)]
    workers = args.workers or os.cpu_count() or 1
    with tqdm(unit=" replays", delay=PROGRESS_DELAY_S, leave=False, desc="limit", file=sys.stderr) as bar:
        find_limits(searches, local_processes(workers, workers), workers, bar.update)
    failed = [search.error for search in searches if search.error is not None]
    if failed and len(failed) == len(searches):
        raise UserError(failed[0])
    facts = {
        "trace": args.trace,
        "num_prompts": load.num_requests,
        "rate_option": rate_option.replace("_", "-"),
        "precision": args.precision,
        "lowest_rate": grid.rate(-grid.most_steps),
        "highest_rate": grid.rate(grid.most_steps),
        "servers": [_server_facts(search) for search in searches],
    }
    print(json.dumps(facts, indent=2, allow_nan=False) if args.json else "\n".join(text_lines(facts)))
    return 1 if failed else 0


def _rate(args: argparse.Namespace) -> tuple[str, float]:
    """The option that is varied, and where to start. UserError: the rate is not open."""
    for name in ("max_concurrency", "concurrent_sessions"):
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise UserError(f"--{flag}: clients that wait for answers never send too much; limit is for open loads")
    if args.rate_scale != 1.0:
        raise UserError("--rate-scale: is what limit looks for")
    for name in ("request_rate", "session_rate"):
        if (rate := getattr(args, name)) is not None:
            if rate == float("inf"):
                raise UserError(f"--{name.replace('_', '-')}: expected a finite rate to start from")
            return name, rate
    return "rate_scale", 1.0


def _servers(args: argparse.Namespace) -> list[argparse.Namespace]:
    """The options for each memory fraction."""
    fractions = shares("--memory-fractions", args.memory_fractions)
    for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if fractions and getattr(args, name) is not None:
            raise UserError(f"--memory-fractions: do nothing beside --{name.replace('_', '-')}")
    servers = []
    for fraction in fractions or [args.gpu_memory_utilization]:
        asked = copy.copy(args)
        asked.gpu_memory_utilization = fraction
        servers.append(asked)
    return servers


def _criteria(args: argparse.Namespace) -> tuple[Criterion, ...]:
    """What must hold."""
    output = output_settings(args)
    criteria = [Criterion("no preemption", "num_preemptions", 0)]
    if (within := args.hit_rate_within) is not None:
        name = f"hit rate within {within:g} of possible"
        criteria.append(Criterion(name, "prefix_cache_hit_rate", within, below="possible_hit_rate"))
    for latency, limit_ms in output.goodput_ms:
        for percent in output.percentiles:
            name = percentile_name(percent)
            text = f"{name} {latency.upper()} at most {limit_ms:g} ms"
            criteria.append(Criterion(text, f"{name}_{latency}_ms", limit_ms))
    return tuple(criteria)


def _server_facts(search: Search) -> dict[str, Any]:
    """What was found for one memory fraction."""
    args = search.args
    has_fraction = args.num_gpu_blocks_override is None and args.kv_cache_memory_bytes is None
    facts: dict[str, Any] = {"memory_fraction": args.gpu_memory_utilization if has_fraction else None}
    if search.error is not None:
        return facts | {"error": search.error}
    keys = list(dict.fromkeys(key for criterion in search.criteria for key in criterion.keys))
    rate = search.grid.rate
    limits = []
    for criteria in search.questions:
        bracket = search.bracket(criteria)
        limit: dict[str, Any] = {
            "criterion": criteria[0].name if len(criteria) == 1 else "all together",
            "highest_held": None if bracket.held is None else rate(bracket.held),
            "lowest_failed": None if bracket.failed is None else rate(bracket.failed),
            "contradictions": [rate(step) for step in search.contradictions(criteria)],
        }
        if len(criteria) == 1:
            for name, step in (("value_at_held", bracket.held), ("value_at_failed", bracket.failed)):
                limit[name] = None if step is None else criteria[0].value(search.replays[step])
        limits.append(limit)
    return facts | {
        "num_gpu_blocks": search.replays[0]["num_gpu_blocks"],
        "limits": limits,
        "replays": [{"rate": rate(step)} | {key: search.replays[step][key] for key in keys} for step in search.steps],
    }
