"""The options for what a replay prints and saves, with the names of ``vllm bench serve``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Choice, File, Number, Several, Switch

LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Time to first token, time per output token, inter-token latency, end-to-end latency."""

GOODPUT_LATENCIES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class ServiceLevel:
    """A latency target of a request."""

    latency: str
    most_ms: float

    def __str__(self) -> str:
        return f"{self.latency}:{self.most_ms:g}"


@dataclass(frozen=True)
class ServiceLevels:
    """A latency and its limit in milliseconds, such as ttft:500."""

    metavar: str = "NAME:MS"

    def read(self, value: Any) -> ServiceLevel:
        name, colon, limit = str(value).partition(":")
        if name not in GOODPUT_LATENCIES or not colon:
            raise ValueError(f"expected ttft, tpot or e2el and milliseconds, such as ttft:500, got {value!r}")
        return ServiceLevel(name, Number().read(limit))


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """Output."""

    json: bool = option(False, Switch(has_off=False), "print one JSON object instead of text")


@dataclass(frozen=True, kw_only=True)
class ResultOptions(JsonOption):
    """Output."""

    out: Path | None = option(None, File("DIR"), "save the result in a new folder, for kvtwin plot and kvtwin report")


@dataclass(frozen=True, kw_only=True)
class OutputOptions(JsonOption):
    """Output (as in vllm bench serve)."""

    out: Path | None = option(None, File("DIR"), "save the run in a new folder")
    percentile_metrics: tuple[str, ...] = option(LATENCIES, Several(Choice(LATENCIES)), "latencies to print")
    metric_percentiles: tuple[float, ...] = option(
        (99.0,), Several(Number("PERCENTS", 0, 100)), "percentiles of latencies, such as 50,90,99"
    )
    goodput: tuple[ServiceLevel, ...] = option(
        (),
        Several(ServiceLevels(), many_words=True),
        "latency targets in ms for goodput, such as ttft:500 tpot:50 (also e2el)",
    )
    check: bool = option(False, Switch(has_off=False), "verify the engine's invariants after every step (slow)")


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """Events (for kvtwin report and kvtwin export)."""

    events: bool = option(
        False,
        Switch(has_off=False),
        "save in --out DIR what happened in every step, block by block",
    )
    kv_events: bool = option(
        False,
        Switch(has_off=False),
        "save in --out DIR the KV events that vLLM would publish, as JSON lines",
    )
