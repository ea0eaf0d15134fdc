"""The hit rate at every size of the cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtwin.experiments.api.given import WorkloadSource, given_options, source_of
from kvtwin.experiments.curves.simulated_points import simulated_points
from kvtwin.experiments.curves.trace_curve import curve_of_options
from kvtwin.experiments.options.curve import CurveOptions
from kvtwin.experiments.setup.trace import open_trace
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.workload import Workload

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Curve:
    """The capacity curve of a workload (docs/curve.md). `curve` makes one."""

    def __init__(self, options: CurveOptions, workload: Workload) -> None:
        self._options, self._workload = options, workload
        self.summary: dict[str, Any] = curve_of_options(options, workload)
        """All of it, under the keys of ``kvtwin curve --json``. Rates are from 0 to 1."""

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row per size: ``blocks`` (with the null block), ``hit_tokens``, ``hit_rate``, ``optimal_hit_rate``.

        Of a sample ``hit_rate_standard_error`` instead of the last, which no policy beats.
        """
        return self._frame("points")

    @cached_property
    def marks(self) -> pd.DataFrame:
        """A row per GPU and memory fraction: ``name``, and the columns of `points`; no blocks where none fit."""
        return self._frame("marks")

    def plot(self, runs: Iterable[str | os.PathLike[str]] = ()) -> Figure:
        """The curve, with the sizes of GPUs marked, and with folders of runs and sweeps as points.

        UserError, naming the folder: it is neither, or not of this workload.
        """
        from kvtwin.experiments.pictures.curve import CURVE, capacity_curve, curve_heading

        simulated = {os.fspath(folder): simulated_points(Path(folder), self.summary) for folder in runs}
        facts = curve_of_options(self._options, self._workload, with_line=True)
        return curve_heading(facts).on(capacity_curve(facts, simulated), CURVE)

    def __repr__(self) -> str:
        facts = self.summary
        return (
            f"Curve({facts['trace']}: {number_of(facts['num_requests'], 'request')},\n    "
            f"ceiling_hit_rate {facts['ceiling_hit_rate']:.4f}, "
            f"blocks_for_90_percent_of_hits {facts['blocks_for_90_percent_of_hits']:,})"
        )

    def _frame(self, key: str) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame(self.summary[key])


def curve(workload: WorkloadSource, **options: Any) -> Curve:
    """The hit rate of ``workload`` at every size of the cache, without simulating each (Mattson's stack distances).

    ``options`` are those of ``kvtwin curve --help``: ``block_size``, ``at`` (sizes in blocks), ``sample`` for large
    traces, ``model`` and ``gpu`` for the sizes to mark (``"l4,l40s"`` are two). UserError: options that cannot be, or
    nothing is known about shared prefixes. WorkloadError: a workload that cannot be read.
    """
    path, opened = source_of(workload, options)
    read = given_options(CurveOptions, "kvtwin curve", options, without=("plot", "runs", "out"), trace=path)
    return Curve(read, opened or open_trace(read.trace, read))
