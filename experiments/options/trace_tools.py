"""The options of ``kvtwin trace ...``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import REQUIRED, argument, option
from kvtwin.experiments.options.kinds import Choice, File, Number, Several, Text, Whole
from kvtwin.experiments.options.load import BURSTINESS
from kvtwin.experiments.options.output import JsonOption
from kvtwin.experiments.options.trace import FormatOptions, TraceOptions
from kvtwin.workloads.request_record import MOST_SAMPLES

_LENGTH = Whole("TOKENS", 1, 10_000_000)


@dataclass(frozen=True, kw_only=True)
class InspectOptions(TraceOptions, JsonOption):
    """What to show."""

    block_size: int = option(16, Whole("TOKENS"), "tokens per cache block")
    max_model_len: int | None = option(None, Whole("TOKENS"), "count prompts that are too long for this limit")
    top_prefixes: int = option(0, Whole("N"), "show the N shared prefixes that save the most tokens")


@dataclass(frozen=True, kw_only=True)
class ConvertOptions(FormatOptions):
    """Files."""

    trace: str = argument(Text("TRACE"), "workload file, folder or pattern; -: standard input")
    out: Path = argument(File("OUT"), "new file; a name in .gz is packed")
    to: str = option(
        "kvtwin", Choice(("kvtwin", "mooncake")), "kvtwin: without loss; mooncake: lengths and 512-token ids"
    )


@dataclass(frozen=True, kw_only=True)
class SampleOptions(FormatOptions):
    """Sample."""

    trace: str = argument(Text("TRACE"), "workload file, folder or pattern; -: standard input")
    out: Path = argument(File("OUT"), "new file in kvtwin's format; a name in .gz is packed")
    num_sessions: int = option(REQUIRED, Whole(), "sessions to keep, whole; a request of none is one of its own")
    seed: int = option(0, Whole("N", 0), "seed: the same seed keeps the same sessions")


@dataclass(frozen=True, kw_only=True)
class MergeOptions(FormatOptions):
    """Files."""

    traces: tuple[str, ...] = argument(Several(Text("TRACE")), "workload files, each of any format; at least two")
    out: Path = option(REQUIRED, File("OUT"), "new file in kvtwin's format; a name in .gz is packed")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """Workload."""

    out: Path = argument(File(), "new file, .jsonl or .jsonl.gz")
    num_prompts: int = option(1000, Whole(), "number of requests")
    conversations_per_s: float = option(2.0, Number("RATE", 1e-6, 1e9), "new conversations per second")
    burstiness: float = option(1.0, BURSTINESS, "1: Poisson arrivals; below 1: burstier")
    user_tokens: int = option(150, Whole("TOKENS"), "median of a turn's new prompt tokens")
    output_tokens: int = option(250, Whole("TOKENS"), "median of a turn's output tokens")
    length_sigma: float = option(0.8, Number("S", 0, 10), "sigma of the log-normal lengths")
    max_tokens: int = option(8000, _LENGTH, "most new prompt tokens, or output tokens, of a turn")
    system_prompts: int = option(4, Whole("N", 0, 10_000), "number of shared system prompts; 0: none")
    system_prompt_tokens: int = option(500, _LENGTH, "length of each system prompt")
    zipf: float = option(
        1.0, Number("EXPONENT", 0, 20), "Zipf exponent of the system prompts' popularity; 0: all equal"
    )
    turns: int = option(1, Whole("N", 1, 10_000), "turns per conversation")
    think_time_s: float = option(10.0, Number("S", 0, 3600), "median pause before each later turn")
    think_time_sigma: float = option(0.6, Number("S", 0, 10), "sigma of all log-normal pauses")
    tool_calls: int = option(0, Whole("N", 0, 1_000), "extra requests per turn, as agents make for tool calls")
    tool_tokens: int = option(400, Whole("TOKENS"), "median tokens that a tool returns")
    tool_time_s: float = option(2.0, Number("S", 0, 3600), "median pause while a tool runs")
    parallel_samples: int = option(1, Whole("N", 1, MOST_SAMPLES), "samples per prompt (n)")
    seed: int = option(0, Whole("N", 0), "seed: the same seed writes the same file")
