"""Traces that are written: to a new file, in one piece."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from kvtwin.experiments.errors import UserError


def write_new(path: Path, write: Callable[[], int]) -> int:
    """``write`` the file ``path`` and tell how many requests it has. UserError: it exists, or cannot be written."""
    if os.path.lexists(path):
        raise UserError(f"{path}: already exists; name a new file")
    try:
        num_written = write()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    print(f"{path}: {num_written:,} requests; `kvtwin trace inspect {path}` shows more")
    return 0
