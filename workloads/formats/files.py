"""The files that a trace is named by."""

from __future__ import annotations

import os
from glob import glob
from pathlib import Path

from kvtwin.workloads.errors import WorkloadError


def trace_files(name: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files that ``name`` stands for: one, several with commas between them, a folder's, or those of a pattern.

    Folders and patterns give them in the order of their names, without hidden ones. A file of exactly this name goes
    before everything else. Raises `WorkloadError` where there is none.
    """
    text = os.fspath(name)
    if os.path.isdir(text):
        files = tuple(path for path in sorted(Path(text).iterdir()) if path.is_file() and path.name[0] != ".")
        if not files:
            raise WorkloadError(text, "expected files in this folder, found none")
        return files
    if os.path.lexists(text):
        return (Path(text),)
    if "," in text:
        return tuple(path for part in text.split(",") for path in trace_files(part.strip()))
    if any(letter in text for letter in "*?["):
        found = sorted(path for path in glob(text, recursive=True) if os.path.isfile(path))
        if not found:
            raise WorkloadError(text, "expected files of such names, found none")
        return tuple(map(Path, found))
    return (Path(text),)
