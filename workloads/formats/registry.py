"""The formats that can be read, and how a file's format is recognised from its first line."""

from __future__ import annotations

import os
from dataclasses import fields
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.formats.applied_compute import AppliedComputeReader
from kvtwin.workloads.formats.azure import AzureReader
from kvtwin.workloads.formats.bailian import BailianReader
from kvtwin.workloads.formats.dynamo_agentic import DynamoAgenticReader
from kvtwin.workloads.formats.dynamo_requests import DynamoRequestsReader
from kvtwin.workloads.formats.json_rows import json_rows
from kvtwin.workloads.formats.llmservingsim import LLMServingSimReader
from kvtwin.workloads.formats.mooncake import MooncakeReader
from kvtwin.workloads.formats.mooncake_delta import MooncakeDeltaReader
from kvtwin.workloads.formats.native import NativeReader
from kvtwin.workloads.formats.reader import Reader, names_in
from kvtwin.workloads.formats.text_lines import text_lines
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
    )
}
"""Every readable format by name, in the order in which they are tried."""

_NOT_SUPPORTED_YET: dict[str, set[str]] = {
    "BurstGPT": {"Timestamp", "Request tokens", "Response tokens"},
    "Vidur": {"num_prefill_tokens", "num_decode_tokens"},
    "TraceLab": {"input_tokens_total", "prefix_tokens"},
    "vLLM benchmark result": {"endpoint_type", "tokenizer_id"},
}
"""Formats that are known but not read, by names that their first lines hold."""

_FIRST_LINES = 8


def open_workload(path: str | os.PathLike[str], format_name: str | None = None, **reader_options: Any) -> Workload:
    """Open the workload file ``path``.

    The format is recognised from the content, not from the name, unless ``format_name`` forces one of
    `FORMATS`. ``reader_options`` are the settings of the format's reader (`MooncakeReader` has some). Reads
    the whole file once, one request at a time. Raises `WorkloadError` when the format is not known or does
    not take the options, when the file cannot be read, at the first bad row, and when there are no
    requests.
    """
    path = Path(path)
    if format_name is not None:
        return Workload.of(path, _reader(format_name, reader_options, str(path)))
    first_lines = [text for _, text in islice(text_lines(path), _FIRST_LINES)]
    if not first_lines:
        raise WorkloadError(str(path), "expected at least one request, found none")
    readers = {
        name: _reader(name, reader_options if _takes(reader_type, reader_options) else {})
        for name, reader_type in FORMATS.items()
    }
    for name, reader in readers.items():
        if reader.recognises(first_lines):
            return Workload.of(path, _reader(name, reader_options, str(path)))
    if first_lines[0].startswith("{"):
        next(json_rows(path))  # says what is wrong, and in which line, where it is not JSON
    raise WorkloadError(str(path), _unknown(first_lines[0], readers))


def _takes(reader_type: type[Reader], options: dict[str, Any]) -> bool:
    return options.keys() <= _settings(reader_type)


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


def _unknown(first_line: str, readers: dict[str, Reader]) -> str:
    """Which formats there are, and what the nearest one would have needed."""
    names = names_in(first_line)
    for name, marks in _NOT_SUPPORTED_YET.items():
        if marks <= names:
            return f"this is the format {name}, not supported yet; expected one of {', '.join(FORMATS)}"
    wanted = {name: reader.first_line_names for name, reader in readers.items()}
    nearest = max(wanted, key=lambda name: len(wanted[name] & names) / len(wanted[name]))
    missing = ", ".join(sorted(wanted[nearest] - names))
    found = len(wanted[nearest] & names)
    hint = f"; nearest: {nearest}, but its first line lacks {missing}" if found else ""
    return f"not a known workload format, expected one of {', '.join(FORMATS)}{hint}"
