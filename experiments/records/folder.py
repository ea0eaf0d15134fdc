"""The folder that a run leaves: configuration, summary, a table of requests and one of steps.

Everything but ``machine.json`` (wall times, host facts) is the same, byte for byte, whenever the run is repeated.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from glob import escape
from pathlib import Path
from typing import Any, Protocol

import yaml

from kvtwin.experiments.errors import UserError
from kvtwin.sim.recording import RequestColumns, StepColumns

SUMMARY = "summary.json"


def check_free(folder: Path) -> None:
    """UserError if ``folder`` is already there, or cannot be made: nothing is overwritten, and no run is wasted."""
    try:
        if os.path.lexists(folder):
            raise _taken(folder)
        if not folder.parent.is_dir():
            raise UserError(f"--out {folder}: {folder.parent} is not a folder")
        os.rmdir(tempfile.mkdtemp(prefix=f".{folder.name}.partial", dir=folder.parent))
    except OSError as error:
        raise _cannot(folder, error) from None


class Tables(Protocol):
    """Rows of requests and steps, such as a `kvtwin.sim.recording.Recorder` has."""

    @property
    def requests(self) -> RequestColumns:
        """A row per request."""

    @property
    def steps(self) -> StepColumns:
        """A row per step."""


def run_files(
    tables: Tables, config: dict[str, Any], summary: dict[str, Any], machine: dict[str, Any]
) -> dict[str, bytes]:
    """The files of a run by name."""
    return {
        "config.yaml": yaml.safe_dump(config, sort_keys=False).encode(),
        SUMMARY: json_bytes(summary),
        "machine.json": json_bytes(machine),
        "requests.parquet": _table(tables.requests),
        "steps.parquet": _table(tables.steps),
    }


def parquet_bytes(table: Any) -> bytes:
    """The content of a file with an Arrow ``table``."""
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def partial_path(folder: Path, suffix: str = "") -> Path:
    """A name beside ``folder`` for what is not whole yet; whoever next writes ``folder`` removes what is left of it."""
    return folder.with_name(f".{folder.name}.partial-{os.getpid()}{suffix}")


@contextmanager
def folder_beside(folder: Path, suffix: str) -> Iterator[Path]:
    """An empty one for what is written before ``folder`` is; what is still in it at the end is removed."""
    partial = partial_path(folder, suffix)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_run_folder(folder: Path, files: dict[str, bytes], streamed: Path | None = None) -> None:
    """Write ``files`` under a temporary name, then rename, so that a killed run leaves nothing half-written.

    What lies in the folder ``streamed`` is moved there too. The first of several runs to end gets the folder.
    """
    partial = partial_path(folder)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            for name, content in files.items():
                path = partial / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
            for path in sorted(streamed.rglob("*")) if streamed else ():
                if path.is_file():
                    target = partial / path.relative_to(streamed)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(path, target)  # it may be on another disk
            partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise (_taken(folder) if os.path.lexists(folder) else _cannot(folder, error)) from None
    for left in folder.parent.glob(f".{escape(folder.name)}.partial-*"):  # by killed runs, or by others too late
        shutil.rmtree(left, ignore_errors=True)


def _taken(folder: Path) -> UserError:
    return UserError(f"--out {folder}: already exists; name a new folder")


def _cannot(folder: Path, error: OSError) -> UserError:
    return UserError(f"--out {folder}: {error.strerror or error}")


def json_bytes(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=2, allow_nan=False).encode() + b"\n"


def _table(columns: RequestColumns | StepColumns) -> bytes:
    import pyarrow

    values = {field.name: getattr(columns, field.name) for field in fields(columns)}
    types = {
        name: pyarrow.int64() if isinstance(column, array) else pyarrow.string() for name, column in values.items()
    }
    return parquet_bytes(pyarrow.table(values, schema=pyarrow.schema(types.items())))
