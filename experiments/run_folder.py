"""The folder that a run leaves: configuration, summary, a table of requests and one of steps.

Everything but ``machine.json`` (wall times, host facts) is the same, byte for byte, whenever the run is repeated.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from experiments.errors import UserError
from sim.recording import Recorder, RequestColumns, StepColumns


def check_free(folder: Path) -> None:
    """UserError if ``folder`` is already there, or cannot be made: nothing is overwritten."""
    if folder.exists():
        raise UserError(f"--out {folder}: already exists; name a new folder")
    if not folder.parent.is_dir():
        raise UserError(f"--out {folder}: {folder.parent} is not a folder")


def write_run_folder(
    folder: Path, recorder: Recorder, config: dict[str, Any], summary: dict[str, Any], machine: dict[str, Any]
) -> None:
    """Write the run under a temporary name, then rename, so that a killed run leaves nothing half-written."""
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        (partial / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        _write_json(partial / "summary.json", summary)
        _write_json(partial / "machine.json", machine)
        _write_table(partial / "requests.parquet", recorder.requests)
        _write_table(partial / "steps.parquet", recorder.steps)
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(f"--out {folder}: {error.strerror}") from None


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _write_table(path: Path, columns: RequestColumns | StepColumns) -> None:
    import pyarrow
    import pyarrow.parquet

    data = {field.name: getattr(columns, field.name) for field in fields(columns)}
    arrays = {
        name: pyarrow.array(list(values) if isinstance(values, list) else values) for name, values in data.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path, compression="zstd")
