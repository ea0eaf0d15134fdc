"""From the options to the workload in a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.trace import DEMO, FormatOptions
from kvtwin.workloads.formats.demo import DemoReader
from kvtwin.workloads.formats.registry import open_workload
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

_KEYS = ("timestamp", "input-length", "output-length", "hash-ids")


def warn_of(workload: Workload) -> None:
    """Tell the user on stderr what is odd about the workload."""
    for warning in workload.warnings:
        print(f"kvtwin: warning: {warning}", file=sys.stderr)


def open_trace(path: str, options: FormatOptions) -> Workload:
    """The workload in the file ``path``, read as ``options`` say. WorkloadError or UserError: it cannot be."""
    if path == DEMO and not os.path.exists(DEMO):
        return Workload.of(Path(DEMO), DemoReader())
    settings: dict[str, Any] = {"skip_bad_lines": True} if options.skip_bad_lines else {}
    if options.tokenizer is not None:
        settings["tokenizer"] = options.tokenizer
    if options.custom_output_len is not None:
        settings["output_tokens"] = options.custom_output_len
    shape: dict[str, Any] = {}
    if options.timed_trace_chunk_hash_size is not None:
        shape["hash_block_tokens"] = options.timed_trace_chunk_hash_size
    if options.timed_trace_sec_multiplier is not None:
        shape["time_unit_ns"] = round(options.timed_trace_sec_multiplier * SECOND_NS)
    for key in _KEYS:
        name = key.replace("-", "_")
        if (label := getattr(options, f"timed_trace_label_{name}")) is not None:
            shape[f"{name}_key"] = label
    if shape and options.format not in (None, "mooncake", "mooncake-delta"):
        raise UserError(f"--timed-trace-...: settings of files of Mooncake's shape, not of --format {options.format}")
    with progress("reading", "rows") as bar:
        return open_workload(path, options.format, on_row=bar.update, **settings, **shape)
