"""The options of the commands that look at what was kept, or at what is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import REQUIRED, argument, option
from kvtwin.experiments.options.kinds import Choice, File, Several, Switch, Text
from kvtwin.experiments.options.output import JsonOption

EXPORT_FORMATS = ("perfetto", "prometheus", "vllm-bench")


@dataclass(frozen=True, kw_only=True)
class CompareOptions(JsonOption):
    """What to compare."""

    runs: tuple[Path, ...] = argument(Several(File("RUN")), "folder of a replay (--out); at least two")
    all: bool = option(False, Switch(has_off=False), "print what is equal as well")


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    """What to draw."""

    folder: Path = argument(File("RUN|SWEEP"), "folder of a replay (--out) or of a sweep (--out)")
    out: Path | None = option(None, File("DIR"), "where to put the pictures (else in the folder itself, under plots)")
    metrics: tuple[str, ...] = option(
        (), Several(Text("KEYS")), "of a sweep: keys of the summary to draw, such as mean_ttft_ms"
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """The page."""

    folder: Path = argument(File("RUN|SWEEP"), "folder of a replay (--out) or of a sweep (--out)")
    out: Path | None = option(None, File(), "page to write (else report.html in the folder itself)")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The export."""

    folder: Path = argument(File("RUN"), "folder of a replay (--out)")
    to: str = option(REQUIRED, Choice(EXPORT_FORMATS), "format")
    out: Path = option(REQUIRED, File(), "file to write; one that is there is replaced")


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Nothing to choose."""
