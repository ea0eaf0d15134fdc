"""The formats that can be read, and how a file's format is recognised from its first row."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.applied_compute import AppliedComputeReader
from kvtwin.workloads.formats.azure import AzureReader
from kvtwin.workloads.formats.bailian import BailianReader
from kvtwin.workloads.formats.burstgpt import BurstGPTReader
from kvtwin.workloads.formats.conversations import ConversationsReader
from kvtwin.workloads.formats.csv_row import CsvRow
from kvtwin.workloads.formats.dynamo_agentic import DynamoAgenticReader
from kvtwin.workloads.formats.dynamo_requests import DynamoRequestsReader
from kvtwin.workloads.formats.files import trace_files
from kvtwin.workloads.formats.json_rows import JsonRow, shown
from kvtwin.workloads.formats.kv_events import KVEventsReader
from kvtwin.workloads.formats.llmservingsim import LLMServingSimReader
from kvtwin.workloads.formats.measured_requests import MeasuredRequestsReader
from kvtwin.workloads.formats.mooncake import MooncakeReader
from kvtwin.workloads.formats.mooncake_delta import MooncakeDeltaReader
from kvtwin.workloads.formats.native import NativeReader
from kvtwin.workloads.formats.openai_requests import OpenAIReader
from kvtwin.workloads.formats.otel import OtelReader
from kvtwin.workloads.formats.prompts import PromptsReader
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.formats.tracelab import TraceLabReader, TraceLabRoundsReader
from kvtwin.workloads.formats.vidur import VidurReader
from kvtwin.workloads.formats.vllm_bench import VllmBenchReader
from kvtwin.workloads.formats.weka import WekaReader
from kvtwin.workloads.workload import Workload

FORMATS: dict[str, type[Reader]] = {
    reader.name: reader
    for reader in (
        NativeReader,
        MooncakeDeltaReader,
        MooncakeReader,
        AzureReader,
        LLMServingSimReader,
        WekaReader,
        BailianReader,
        DynamoAgenticReader,
        DynamoRequestsReader,
        AppliedComputeReader,
        BurstGPTReader,
        VidurReader,
        TraceLabReader,
        TraceLabRoundsReader,
        VllmBenchReader,
        MeasuredRequestsReader,
        KVEventsReader,
        OtelReader,
        OpenAIReader,
        ConversationsReader,
        PromptsReader,
    )
}
"""Every readable format by name, in the order in which they are tried."""

_FIRST_ROWS = 8
_MOST_NAMES_SHOWN = 12


def open_workload(
    path: str | os.PathLike[str],
    format_name: str | None = None,
    *,
    on_row: Callable[[], object] = lambda: None,
    **reader_options: Any,
) -> Workload:
    """Open the workload ``path``: a file, several with commas between them, a folder of files, or a pattern such as
    ``traces/*.jsonl``. Several files are read one after the other, as if they were one.

    The format is recognised from the content, not from the name, unless ``format_name`` forces one of
    `FORMATS`. ``reader_options`` are the settings of the format's reader (`MooncakeReader` has some);
    ``skip_bad_lines`` every reader has. Reads everything once, one request at a time, and calls ``on_row`` at each row,
    unless they are read as columns, which is fast. Raises `WorkloadError` when the
    format is not known or does not take the options, when a file cannot be read or has another format than the first,
    at the first bad row, and when there are no requests.
    """
    paths = trace_files(path)
    if format_name is None:
        names = [_recognised(file, reader_options) for file in paths]
        for file, name in zip(paths, names, strict=True):
            if name != names[0]:
                message = f"has the format {name}, and {paths[0]} {names[0]}: `kvtwin trace merge` brings them together"
                raise WorkloadError(str(file), message)
        format_name = names[0]
    reader = _reader(format_name, reader_options, str(paths[0]))
    return Workload.of(Path(path), reader, paths, on_row)


def _recognised(path: Path, reader_options: dict[str, Any]) -> str:
    """The name of a file's format."""
    trace = Rows((path,), bool(reader_options.get("skip_bad_lines")))
    rows = trace.first(_FIRST_ROWS)
    if not rows:
        below = f" below the columns {_some([name for name in trace.columns if name])}" if trace.columns else ""
        found = "".join(f"; {sentence}" for sentence in trace.sentences())
        raise WorkloadError(str(path), f"expected at least one request, found none{below}{found}")
    for name, reader_type in FORMATS.items():
        options = reader_options if reader_options.keys() <= _settings(reader_type) else {}
        if _reader(name, options).recognises(rows):
            return name
    raise WorkloadError(str(path), _unknown(rows[0]))


def _settings(reader_type: type[Reader]) -> set[str]:
    return {field.name for field in fields(reader_type)}


def _reader(name: str, options: dict[str, Any], source: str = "") -> Reader:
    if name not in FORMATS:
        near = get_close_matches(name, FORMATS, n=1, cutoff=0)[0]
        raise WorkloadError("", f"unknown format {name!r}, expected one of {', '.join(FORMATS)}; nearest: {near}")
    for option in options:
        if option not in _settings(FORMATS[name]):
            raise WorkloadError(source, f"format {name} has no setting {option!r}")
    return FORMATS[name](**options)


def _unknown(row: JsonRow) -> str:
    """What the first row holds; which format it nearly is nobody can tell."""
    what = "columns" if isinstance(row, CsvRow) else "keys"
    return (
        f"not a known workload format: its first row has the {what} {_some(list(row.values))}; "
        "docs/traces.md lists what each format has, and --format forces one"
    )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
    return ", ".join(shown(name)[1:-1] for name in names[:_MOST_NAMES_SHOWN]) + more
