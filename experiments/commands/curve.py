"""``kvtwin curve``: the hit rate of a trace at every size of the cache, without simulating each."""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

from kvtwin.engine.sizing.group_planning import SizingError
from kvtwin.experiments.curves.facts import Mark, curve_facts
from kvtwin.experiments.curves.simulated_points import simulated_points
from kvtwin.experiments.curves.text import text_lines
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.number_lists import shares, whole_numbers
from kvtwin.experiments.options.parser import Number
from kvtwin.experiments.options.sizing import add_sizing_arguments, plan_sizing, resolve_inputs
from kvtwin.experiments.options.trace import add_trace_arguments, open_trace

EPILOGUE = """\
One pass gives all sizes (stack distances). It takes requests one after another in order of arrival; a replay knows
more: requests that overlap, preemptions, a budget. Blocks count as in --num-gpu-blocks-override: with the null block.

examples:
  kvtwin curve conversation_trace.jsonl.gz
  kvtwin curve trace.jsonl --model meta-llama/Llama-3.1-8B --gpu l40s,h200 --memory-fractions 0.5,0.92
  kvtwin curve trace.jsonl --model Llama-3.1-8B --gpu h200 --plot curve.png --runs first-sweep
  kvtwin curve trace.jsonl --block-size 512 --at 1000,4000,16000 --json

With --model and --gpu the sizes of these GPUs are marked (options of `kvtwin size` apply).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``curve``."""
    add_trace_arguments(parser)
    group = parser.add_argument_group("the curve")
    add = group.add_argument
    add("--at", metavar="BLOCKS", help="sizes to print, such as 10000,40000 (else round ones)")
    add(
        "--memory-fractions",
        metavar="SHARES",
        help="of each --gpu, such as 0.5,0.7,0.92 (else --gpu-memory-utilization)",
    )
    add(
        "--sample",
        type=Number(1e-6, 1, above=True),
        metavar="SHARE",
        help="estimate from this share of the blocks, with its error: for traces too large for memory",
    )
    add("--plot", type=Path, metavar="FILE", help="draw the curve as FILE, .png or .svg")
    add("--runs", type=Path, nargs="+", metavar="DIR", help="with --plot: runs and sweeps (--out) to draw as points")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add_sizing_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the curve."""
    sizes = whole_numbers("--at", args.at)
    marks, max_model_len = _marks(args)
    _check_picture(args)
    workload = open_trace(args)
    facts = curve_facts(
        workload, args.block_size, max_model_len, sizes, marks, args.sample, with_line=args.plot is not None
    )
    if args.plot:
        _draw(args, facts)
    print(json.dumps(facts, indent=2, allow_nan=False) if args.json else "\n".join(text_lines(workload, facts)))
    return 0


def _check_picture(args: argparse.Namespace) -> None:
    """UserError, before anything is computed: a picture that cannot be drawn."""
    if args.runs and not args.plot:
        raise UserError("--runs: points of a picture, so they need --plot")
    if args.plot and args.plot.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"--plot {args.plot}: expected a file that ends in .png or .svg")


def _draw(args: argparse.Namespace, facts: dict[str, Any]) -> None:
    simulated = {str(folder): simulated_points(folder, facts) for folder in args.runs or ()}
    from kvtwin.experiments.pictures.curve import capacity_curve
    from kvtwin.experiments.pictures.figure import save_as

    try:
        save_as(capacity_curve(facts, simulated), args.plot)
    except OSError as error:
        raise UserError(f"--plot {args.plot}: {error.strerror or error}") from None


def _marks(args: argparse.Namespace) -> tuple[list[Mark], int]:
    """The cache of every GPU and memory fraction asked for, and the longest request that any of them takes."""
    fractions = shares("--memory-fractions", args.memory_fractions)
    if not args.model:
        if args.gpu or fractions:
            raise UserError("--gpu and --memory-fractions: need --model")
        return [], args.max_model_len if args.max_model_len and args.max_model_len > 0 else sys.maxsize
    marks, longest = [], 0
    for gpu in args.gpu.split(",") if args.gpu else [None]:
        for fraction in fractions or [args.gpu_memory_utilization]:
            asked = copy.copy(args)
            asked.gpu, asked.gpu_memory_utilization = gpu, fraction
            inputs = resolve_inputs(asked)
            name = f"{gpu or 'no GPU'} at {fraction:g}"
            try:
                plan = plan_sizing(inputs).plan
            except SizingError:
                marks.append(Mark(name, None))
                longest = max(longest, inputs.max_model_len)
                continue
            if len(plan.groups) != 1 or plan.groups[0].kind != "full_attention":
                raise UserError(
                    f"{inputs.shape.name}: the curve is for one group of full attention; replay such a model"
                )
            marks.append(Mark(name, plan.num_blocks))
            longest = max(longest, plan.max_model_len)
    return marks, longest
