"""The options of the commands that read saved runs, or list the catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import REQUIRED, argument, option
from kvtwin.experiments.options.kinds import Choice, File, Several, Switch, Text
from kvtwin.experiments.options.output import JsonOption

EXPORT_FORMATS = ("grafana", "perfetto", "prometheus", "vllm-bench")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(JsonOption):
    """Runs."""

    runs: tuple[Path, ...] = argument(Several(File("RUN")), "folder of a replay (--out); at least two")
    all: bool = option(False, Switch(has_off=False), "also print what is equal")


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """Pictures."""

    folder: Path = argument(File("FOLDER"), "what a command left in its --out: a run, a sweep, a curve, limits, ...")
    out: Path | None = option(
        None, File("DIR"), "folder for the pictures, new files in it (default: plots in FOLDER, made anew)"
    )
    metrics: tuple[str, ...] = option(
        (), Several(Text("KEYS")), "for a sweep: summary keys to draw, such as mean_ttft_ms"
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Page."""

    folder: Path = argument(File("FOLDER"), "what a command left in its --out: a run, a sweep, a curve, limits, ...")
    out: Path | None = option(None, File(), "new file (default: report.html in FOLDER, made anew)")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Export."""

    folder: Path = argument(File("RUN"), "folder of a replay (--out)")
    to: str = option(REQUIRED, Choice(EXPORT_FORMATS), "format to write")
    out: Path = option(REQUIRED, File(), "new file")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """No options."""
