"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtwin.experiments.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; the file gets its own name at the end, if nothing went wrong.

    UserError: ``path`` is a device, or something else that a file would be put in the place of.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: expected the name of a file, this is something else")
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
