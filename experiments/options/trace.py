"""The options that name a workload file and say how to read it, with the names of ``vllm bench serve``."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import argument, option
from kvtwin.experiments.options.kinds import Choice, Number, Switch, Text, Texts, Whole
from kvtwin.workloads.formats.names import FORMAT_NAMES

DEMO = "demo"
"""The name of the bundled workload; a file of that name goes before it."""

_MULTIPLIER_S = Number("S", 1e-9, 86_400.0)
_SHAPE = "Mooncake-like files: "


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Trace format."""

    format: str | None = option(
        None, Choice(FORMAT_NAMES), "trace format (default: recognised from the file's content)"
    )
    skip_bad_lines: bool = option(
        False, Switch(has_off=False), "leave out lines that cannot be read, and say how many and which"
    )
    tokenizer: str | None = option(
        None, Text("PATH"), "files of texts: folder of a tokenizer, or its tokenizer.json (extra: text; else: a guess)"
    )
    custom_output_len: int | None = option(
        None, Whole("TOKENS"), "files of texts: output tokens of requests whose rows do not tell"
    )
    timed_trace_chunk_hash_size: int | None = option(
        None, Whole("TOKENS"), f"{_SHAPE}tokens per hash id (default: 512; vLLM's own default is 16)"
    )
    timed_trace_sec_multiplier: float | None = option(
        None, _MULTIPLIER_S, f"{_SHAPE}seconds per timestamp unit (default: 0.001; vLLM's own default is 1)"
    )
    timed_trace_label_timestamp: str | None = option(None, Text("KEY"), f"{_SHAPE}key of the timestamp")
    timed_trace_label_input_length: str | None = option(None, Text("KEY"), f"{_SHAPE}key of the input length")
    timed_trace_label_output_length: str | None = option(None, Text("KEY"), f"{_SHAPE}key of the output length")
    timed_trace_label_hash_ids: str | None = option(None, Text("KEY"), f"{_SHAPE}key of the hash ids")


@dataclass(frozen=True, kw_only=True)
class TraceOptions(FormatOptions):
    """Trace."""

    trace: str = argument(
        Texts("TRACE"), "workload file, folder or pattern, or several; -: standard input; demo: the bundled workload"
    )
