"""A trace that is piped in: ``-`` for its name. It is read more than once, so that it lies in a file meanwhile."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError

NAME = "-"


def with_standard_input(options: Any) -> Any:
    """``options`` whose trace is a file, if it was standard input. UserError: nothing is piped in."""
    if getattr(options, "trace", None) != NAME:
        return options
    if sys.stdin is None or sys.stdin.isatty():
        raise UserError("TRACE -: expected a trace on standard input: ... | kvtwin ... -")
    folder = Path(tempfile.mkdtemp(prefix="kvtwin-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "stdin"
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return replace(options, trace=str(path))
