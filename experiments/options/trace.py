"""The options that name a workload file and say how to read it, with the names of ``vllm bench serve``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number, Whole
from kvtwin.workloads.formats.demo import DemoReader
from kvtwin.workloads.formats.registry import FORMATS, open_workload
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

_KEYS = ("timestamp", "input-length", "output-length", "hash-ids")
DEMO = "demo"
"""The name of the bundled workload; a file of that name goes before it."""

_SHORTEST_UNIT_S = 1e-9
_LONGEST_UNIT_S = 86_400.0


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """The workload file and how to read it."""
    parser.add_argument("trace", metavar="TRACE", help="workload file: plain, gzip or xz; demo: the bundled workload")
    add_format_arguments(parser)


def add_format_arguments(parser: argparse.ArgumentParser) -> None:
    """How to read the workload file."""
    group = parser.add_argument_group("reading the trace")
    add = group.add_argument
    add("--format", choices=tuple(FORMATS), help="force a format (else recognised from the file's content)")
    add(
        "--timed-trace-chunk-hash-size",
        type=Whole(),
        metavar="TOKENS",
        help="Mooncake's shape of file: tokens per hash id (else 512; vLLM's own default is 16)",
    )
    add(
        "--timed-trace-sec-multiplier",
        type=Number(_SHORTEST_UNIT_S, _LONGEST_UNIT_S),
        metavar="S",
        help="Mooncake's shape of file: seconds per unit of time (else 0.001; vLLM's own default is 1)",
    )
    for key in _KEYS:
        what = key.replace("-", " ")
        add(f"--timed-trace-label-{key}", metavar="KEY", help=f"Mooncake's shape of file: key of the {what}")


def open_trace(args: argparse.Namespace) -> Workload:
    """The workload of the command line. WorkloadError, a UserError to be: it cannot be read."""
    if args.trace == DEMO and not os.path.exists(DEMO):
        return Workload.of(Path(DEMO), DemoReader())
    options: dict[str, Any] = {}
    if args.timed_trace_chunk_hash_size is not None:
        options["hash_block_tokens"] = args.timed_trace_chunk_hash_size
    if args.timed_trace_sec_multiplier is not None:
        options["time_unit_ns"] = round(args.timed_trace_sec_multiplier * SECOND_NS)
    for key in _KEYS:
        name = key.replace("-", "_")
        if (label := getattr(args, f"timed_trace_label_{name}")) is not None:
            options[f"{name}_key"] = label
    if options and args.format not in (None, "mooncake", "mooncake-delta"):
        raise UserError(f"--timed-trace-...: settings of files of Mooncake's shape, not of --format {args.format}")
    return open_workload(args.trace, args.format, **options)
