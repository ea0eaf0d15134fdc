"""The options of what a replay prints and keeps, with the names of ``vllm bench serve``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.parser import Number
from kvtwin.experiments.runs.latencies import LATENCIES

_GOODPUT_LATENCIES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class OutputSettings:
    """Latencies to print, their percentiles, and service levels: (latency, most milliseconds)."""

    metrics: tuple[str, ...]
    percentiles: tuple[float, ...]
    goodput_ms: tuple[tuple[str, float], ...]


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """What is printed and kept."""
    group = parser.add_argument_group("output (as in vllm bench serve)")
    add = group.add_argument
    add("--out", type=Path, metavar="DIR", help="keep the run in a new folder")
    add("--json", action="store_true", help="print one JSON object instead of text")
    add("--percentile-metrics", default=",".join(LATENCIES), metavar="NAMES", help="latencies to print")
    add("--metric-percentiles", default="99", metavar="PERCENTS", help="percentiles of latencies, such as 50,90,99")
    add("--goodput", nargs="+", metavar="NAME:MS", help="service levels, such as ttft:500 tpot:50 (also e2el)")
    add("--check", action="store_true", help="verify the engine's invariants after every step (slow)")


def output_settings(args: argparse.Namespace) -> OutputSettings:
    """What the command line asks for. UserError: an unknown latency, or a number out of range."""
    metrics = tuple(dict.fromkeys(name.strip() for name in args.percentile_metrics.split(",") if name.strip()))
    for name in metrics:
        if name not in LATENCIES:
            raise UserError(f"--percentile-metrics: expected names among {', '.join(LATENCIES)}, got {name!r}")
    percents = [_number("--metric-percentiles", text, Number(0, 100)) for text in args.metric_percentiles.split(",")]
    return OutputSettings(metrics, tuple(dict.fromkeys(percents)), tuple(_goodput(args.goodput or [])))


def _goodput(words: list[str]) -> list[tuple[str, float]]:
    """Service levels from ``ttft:500,tpot:50``, in one word or several."""
    levels = []
    for word in filter(None, ",".join(words).split(",")):
        name, colon, limit = word.partition(":")
        if name not in _GOODPUT_LATENCIES or not colon:
            raise UserError(f"--goodput: expected ttft, tpot or e2el and milliseconds, such as ttft:500, got {word!r}")
        levels.append((name, _number("--goodput", limit, Number())))
    return levels


def _number(flag: str, text: str, number: Number) -> float:
    try:
        return number(text)
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{flag}: {error}") from None
