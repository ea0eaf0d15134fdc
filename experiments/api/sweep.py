"""A workload under many settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvtwin.experiments.api.given import WorkloadSource, source_of
from kvtwin.experiments.api.keeping import returned_in_any_case
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.reading import option_key, read_options
from kvtwin.experiments.options.sweep import SweepOptions
from kvtwin.experiments.sweeps.check import check_sweep
from kvtwin.experiments.sweeps.executors import local_processes
from kvtwin.experiments.sweeps.folder import SweepFolder
from kvtwin.experiments.sweeps.spec import sweep_spec
from kvtwin.experiments.sweeps.sweep import run_sweep

if TYPE_CHECKING:
    import pandas as pd


def sweep(
    workload: WorkloadSource | None = None,
    axes: Mapping[str, Iterable[Any]] | None = None,
    *,
    points: Iterable[Mapping[str, Any]] | None = None,
    workers: int | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    **options: Any,
) -> pd.DataFrame:
    """Replay ``workload`` under every combination of settings, in parallel, each from a cold cache.

    ``axes`` has a list of values per option: ``{"block_size": [16, 32]}``. An axis ``"a, b"``, with a list of pairs,
    changes two together; ``points``, a list of options, is combined with the axes; ``options`` are those of every
    replay. Without a ``workload``, ``trace`` is an axis. ``workers`` is the number of processes; None: one per CPU. A
    workload travels to them best as a path. ``out`` keeps every run in a new folder, where ``resume`` goes on.

    A row per combination, in order: the options that vary, ``error`` (missing, or why it could not be replayed), and
    every figure of ``Run.summary``. Where an option and a figure have one name, the column is the option. If ``out``
    cannot be written in the end, a RuntimeWarning says so.

    UserError: settings that are none, or a trace that is not there.
    """
    import pandas as pd

    path, opened = (None, None) if workload is None else source_of(workload, options)
    listed = {name: _values(axis) for name, axis in (axes or {}).items()}
    content: dict[str, Any] = {"options": options, "axes": listed}
    if points is not None:
        content["points"] = [dict(point) for point in points]
    spec = sweep_spec("sweep", content, path)
    if opened is not None and "trace" in spec.axes:
        raise UserError("sweep: trace: is an option of the points, and the workload is given as well")
    check_sweep(spec, has_workload=opened is not None)
    asked = read_options(
        SweepOptions, {"spec": "sweep", "workers": workers, "out": out, "resume": resume}, "kvtwin sweep"
    )
    if asked.resume and asked.out is None:
        raise UserError("--resume: needs --out DIR")
    folder = SweepFolder(asked.out) if asked.out else None
    if folder:
        folder.open(spec, asked.resume)
    where = local_processes(asked.workers, len(spec.points))
    rows = returned_in_any_case(lambda show: run_sweep(spec, folder, where, opened, show=show))
    return pd.DataFrame([_row(point.varied, row) for point, row in zip(spec.points, rows, strict=True)])


def _values(axis: Any) -> Any:
    """The values of an axis as a specification has them: lists, also where two options change together."""
    if isinstance(axis, str) or not isinstance(axis, Iterable):
        return axis  # which the specification refuses
    return [list(value) if isinstance(value, tuple) else value for value in axis]


def _row(varied: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The options under their names in Python, then the error, then the figures."""
    options = {option_key(name): value for name, value in varied.items()}
    taken = {"point", *varied, *options}
    return options | {"error": None} | {name: value for name, value in row.items() if name not in taken}
