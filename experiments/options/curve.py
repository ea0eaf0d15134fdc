"""The options of ``kvtwin curve``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import File, Number, Several, Whole
from kvtwin.experiments.options.limit import SHARE
from kvtwin.experiments.options.output import ResultOptions
from kvtwin.experiments.options.replicas import ReplicaOptions
from kvtwin.experiments.options.server import ServerOptions
from kvtwin.experiments.options.sglang import SglangOptions
from kvtwin.experiments.options.sizing import SizingOptions
from kvtwin.experiments.options.trace import TraceOptions
from kvtwin.experiments.options.trtllm import TrtllmCacheOptions


@dataclass(frozen=True, kw_only=True)
class CurveOptions(
    TraceOptions, ServerOptions, SizingOptions, TrtllmCacheOptions, SglangOptions, ReplicaOptions, ResultOptions
):
    """Curve."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset(
        {
            "replicas",
            "api_server_count",
            "data_parallel_size_local",
            "data_parallel_hybrid_lb",
            "data_parallel_external_lb",
            "router_event_lag_ms",
            "executor",
        }
    )
    """Options of replicas that no curve has: refused."""

    at: tuple[int, ...] = option(
        (), Several(Whole("BLOCKS", 2)), "sizes to print, such as 10000,40000 (default: round numbers)"
    )
    memory_fractions: tuple[float, ...] = option(
        (),
        Several(SHARE),
        "mark these memory fractions of each --gpu, such as 0.5,0.7,0.92 (default: --gpu-memory-utilization)",
    )
    sample: float | None = option(
        None,
        Number("SHARE", 1e-6, 1, above=True),
        "estimate from this share of the blocks, with an error: for traces that do not fit in memory",
    )
    plot: Path | None = option(None, File(), "draw the curve to FILE (.png or .svg)")
    runs: tuple[Path, ...] = option(
        (),
        Several(File("DIR"), many_words=True),
        "with --plot: folders of runs and sweeps to draw as points",
    )
