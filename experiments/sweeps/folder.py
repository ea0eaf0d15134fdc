"""The folder of a sweep: ``sweep.yaml`` has every point's command line, ``points/`` a run folder of each.

``results.parquet``, a row per point, comes last. A point is finished when its run folder is there, so a sweep that was
killed loses none and can go on.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.whole import whole_file
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.experiments.records.folder import SUMMARY, write_run_folder
from kvtwin.experiments.sweeps.spec import SweepPoint, SweepSpec


@dataclass(frozen=True)
class SweepFolder:
    """The results of a sweep on disk."""

    path: Path

    def open(self, spec: SweepSpec, resume: bool) -> None:
        """Make the folder, or go on with it. UserError: it holds something else, or cannot be made."""
        content = _plan(spec)
        plan = self.path / "sweep.yaml"
        try:
            if not os.path.lexists(self.path):
                self.path.mkdir()
                (self.path / "points").mkdir()
                _write(plan, yaml.safe_dump(content, sort_keys=False).encode())
                return
            if not resume:
                raise UserError(f"--out {self.path}: already exists; name a new folder, or go on with --resume")
            if not plan.is_file():
                raise UserError(f"--out {self.path}: no sweep to resume: {plan.name} is missing")
            if not _is_same(read_yaml(plan), content):
                raise UserError(f"--out {self.path}: holds another sweep: {plan} does not have these points")
            (self.path / "points").mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(f"--out {self.path}: {error.strerror or error}") from None

    def is_finished(self, point: SweepPoint) -> bool:
        """Whether the point's run folder is there."""
        return (self._of(point) / SUMMARY).is_file()

    def keep(self, point: SweepPoint, files: dict[str, bytes]) -> None:
        """Write the point's run folder."""
        write_run_folder(self._of(point), files)

    def summary(self, point: SweepPoint) -> dict[str, Any]:
        """The summary of a finished point. UserError: it cannot be read."""
        path = self._of(point) / SUMMARY
        try:
            summary: dict[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: not the summary of a run: {error}") from None
        return summary

    def keep_results(self, rows: list[dict[str, Any]]) -> None:
        """Write one row per point, in order."""
        import pyarrow
        import pyarrow.parquet

        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: _column([row.get(name) for row in rows]) for name in names}
        sink = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), sink, compression="zstd")
        _write(self.path / "results.parquet", sink.getvalue())

    def _of(self, point: SweepPoint) -> Path:
        return self.path / "points" / point.label


def read_sweep(path: Path) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """The varied options, and a row per point, of a sweep that has ended. UserError: the folder is none."""
    import pyarrow
    import pyarrow.parquet

    plan = _read_plan(path)
    axes = tuple(dict.fromkeys(name for point in plan["points"] for name in point["varied"]))
    results = path / "results.parquet"
    if not results.is_file():
        raise UserError(f"{path}: the sweep has not ended; go on with --resume")
    try:
        with open(results, "rb") as file:
            rows: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{results}: not a table: {error}") from None
    return axes, rows


class SweepPlan(NamedTuple):
    """What a sweep was to do."""

    description: str
    command: str
    """What runs it."""
    arguments: list[list[str]]
    """Of each point's replay."""


def read_sweep_plan(path: Path) -> SweepPlan:
    """What a sweep was to do. UserError: the folder is none."""
    plan = _read_plan(path)
    arguments = [point["arguments"] for point in plan["points"]]
    return SweepPlan(plan.get("description") or "", plan.get("command") or "kvtwin sweep", arguments)


def _read_plan(path: Path) -> dict[str, Any]:
    plan = read_yaml(path / "sweep.yaml")
    if not isinstance(plan, dict) or not isinstance(plan.get("points"), list):
        raise UserError(f"{path / 'sweep.yaml'}: not the plan of a sweep")
    return plan


def _plan(spec: SweepSpec) -> dict[str, Any]:
    return {
        "command": spec.command,
        "description": spec.description,
        "points": [{"varied": dict(point.varied), "arguments": point.arguments} for point in spec.points],
    }


def _is_same(plan: Any, other: dict[str, Any]) -> bool:
    """Whether two plans are of one sweep, whatever it is called."""
    return isinstance(plan, dict) and plan | {"command": None} == other | {"command": None}


def _write(path: Path, content: bytes) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise UserError(f"--out {path}: {error.strerror or error}") from None


def _column(values: list[Any]) -> list[Any]:
    """Values of one type; text where they are of several."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [value if value is None or kinds == {int} else float(value) for value in values]
    return values if len(kinds) <= 1 and not kinds & {list, dict} else [None if v is None else str(v) for v in values]
