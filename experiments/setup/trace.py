"""From the options to the workload in a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.trace import DEMO, FormatOptions
from kvtwin.workloads.formats.demo import DemoReader
from kvtwin.workloads.formats.registry import open_workload
from kvtwin.workloads.time_units import SECOND_NS
from kvtwin.workloads.workload import Workload

_KEYS = ("timestamp", "input-length", "output-length", "hash-ids")


def open_trace(path: str, options: FormatOptions) -> Workload:
    """The workload in the file ``path``, read as ``options`` say. WorkloadError or UserError: it cannot be."""
    if path == DEMO and not os.path.exists(DEMO):
        return Workload.of(Path(DEMO), DemoReader())
    settings: dict[str, Any] = {}
    if options.timed_trace_chunk_hash_size is not None:
        settings["hash_block_tokens"] = options.timed_trace_chunk_hash_size
    if options.timed_trace_sec_multiplier is not None:
        settings["time_unit_ns"] = round(options.timed_trace_sec_multiplier * SECOND_NS)
    for key in _KEYS:
        name = key.replace("-", "_")
        if (label := getattr(options, f"timed_trace_label_{name}")) is not None:
            settings[f"{name}_key"] = label
    if settings and options.format not in (None, "mooncake", "mooncake-delta"):
        raise UserError(f"--timed-trace-...: settings of files of Mooncake's shape, not of --format {options.format}")
    return open_workload(path, options.format, **settings)
