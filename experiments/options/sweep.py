"""The options of ``kvtwin sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import argument, option
from kvtwin.experiments.options.kinds import File, Switch, Text, Texts, Whole
from kvtwin.experiments.options.output import JsonOption

WORKERS = Whole("N", 1, 1024)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(JsonOption):
    """Sweep."""

    spec: Path = argument(File("SPEC.yaml"), "the settings to replay")
    trace: str | None = argument(Texts("TRACE"), "workload file, instead of the one in SPEC.yaml", None)
    out: Path | None = option(None, File("DIR"), "save every run, and a table of all, in a new folder")
    resume: bool = option(False, Switch(has_off=False), "continue --out DIR: replay only what is missing")
    dry_run: bool = option(False, Switch(has_off=False), "check SPEC.yaml and print the replays without running them")
    workers: int | None = option(None, WORKERS, "worker processes on this machine (default: one per CPU)")
    dask: str | None = option(None, Text("ADDRESS"), "run on a Dask cluster, such as tcp://host:8786 (extra: dask)")
