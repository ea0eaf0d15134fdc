"""Tables that were made before, found again on disk."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from kvtwin.experiments.files.whole import whole_file
from kvtwin.experiments.operator_tables.aiconfigurator import OperatorTimes, Question, package_version
from kvtwin.experiments.operator_tables.tables import step_tables
from kvtwin.sim.tabulated import Curve, StepTables, Surface, TabulatedStepTime

_FORM = 2
"""Counts up when other tables are made from the same package."""


def aic_step_time(question: Question, **others: Any) -> TabulatedStepTime:
    """The model ``aic`` for one model on one GPU; its tables are made once. UserError: there are none.

    ``others`` are what the tables lack: keywords of :class:`TabulatedStepTime`.
    """
    package = package_version()
    path = _folder() / f"{_name(question, package)}.json.gz"
    kept = _read(path)
    if kept is None:
        times = OperatorTimes(question)
        kept = {"version": times.version, "tables": step_tables(times)}
        _write(path, kept)
    facts = {
        "gpu": question.gpu,
        "tensor_parallel_size": question.tensor_parallel_size,
        **({"data_parallel_size": question.data_parallel_size} if question.data_parallel_size > 1 else {}),
        "dtype": question.dtype,
        "kv_cache_dtype": question.kv_cache_dtype,
        "tables": f"aiconfigurator-core {package}, vLLM {kept['version']}",
    }
    return TabulatedStepTime("aic", kept["tables"], facts, **others)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvtwin" / "step-times"


def _name(question: Question, package: str) -> str:
    asked = json.dumps([_FORM, package, *question], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, Any] | None:
    """None: it is not there, or not whole."""
    try:
        data = json.loads(gzip.decompress(path.read_bytes()))
        curves = (Curve(*data[name]) for name in ("tokens", "sampled"))
        surfaces = (Surface(*data[name]) for name in ("decode", "prefill"))
        return {"version": data["version"], "tables": StepTables(*curves, *surfaces)}
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, kept: dict[str, Any]) -> None:
    """Keep it, if that can be: without, it is made again."""
    data = {"version": kept["version"], **kept["tables"]._asdict()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_bytes(gzip.compress(json.dumps(data).encode(), mtime=0))
    except OSError:
        return
