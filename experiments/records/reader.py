"""Run folders, read back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.workloads.counts import number_of

_FILES = ("config.yaml", "summary.json", "requests.parquet", "steps.parquet")

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """The folder that a run left. UserError, naming the folder: it is not one."""

    path: Path

    def __post_init__(self) -> None:
        missing = [name for name in _FILES if not (self.path / name).is_file()]
        if missing:
            runs = [str(self.path / name) for name in ("measured", "predicted") if (self.path / name).is_dir()]
            hint = f"; it is of a validation: name {' or '.join(runs)}" if runs else ""
            raise UserError(f"{self.path}: not the folder of a run: {missing[0]} is missing{hint}")
        configuration = self.configuration
        parts = (
            [configuration.get(name) for name in ("options", "engine")] if isinstance(configuration, dict) else [None]
        )
        if not all(isinstance(part, dict) for part in parts):
            raise UserError(f"{self.path / 'config.yaml'}: not the configuration of a run")

    @cached_property
    def configuration(self) -> Any:
        """Everything resolved that decided the run."""
        return read_yaml(self.path / "config.yaml")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's figures."""
        return _read_json(self.path / "summary.json")

    @cached_property
    def machine(self) -> dict[str, Any]:
        """When and where it ran; empty if the folder does not say so."""
        path = self.path / "machine.json"
        return _read_json(path) if path.is_file() else {}

    @cached_property
    def requests(self) -> Columns:
        """One row per request, as columns."""
        return read_table(self.path / "requests.parquet")

    @cached_property
    def steps(self) -> Columns:
        """One row per step, as columns."""
        return read_table(self.path / "steps.parquet")

    @cached_property
    def replicas(self) -> list[Run]:
        """The runs of its replicas, each as if it had been alone; empty where there was one server."""
        count = len(self.summary.get("replicas", ()))
        return [Run(self.path / f"replica-{number}") for number in range(count)]

    def files(self) -> dict[str, bytes]:
        """The files of the folder and of those in it, by name."""
        paths = sorted(path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in paths}

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return int(self.configuration["engine"]["num_blocks"])

    @property
    def title(self) -> str:
        """What was run on what, in a line."""
        trace = Path(str(self.configuration["options"]["trace"])).name
        return f"{trace}: {self.configuration['model']}, {number_of(self.num_blocks, 'block')}"


@contextmanager
def written_by_this_version(folder: Path) -> Iterator[None]:
    """UserError, naming the folder, if a figure or an option is missing."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{folder}: has no {error}: another version of kvtwin wrote it; run it again") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: not of a run: expected a mapping")
    return data


def read_table(path: Path) -> Columns:
    """A Parquet file's columns. UserError: it is none."""
    table = read_arrow(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def read_arrow(path: Path) -> Any:
    """A Parquet file as an Arrow table. UserError: it is none."""
    import pyarrow
    import pyarrow.parquet

    try:
        with open(path, "rb") as file:
            return pyarrow.parquet.read_table(file)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path}: not a table: {error}") from None
