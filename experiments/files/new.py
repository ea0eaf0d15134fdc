"""Files that a user names are new ones: nothing that is there is overwritten, by any command."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.whole import whole_file


def check_new(path: Path, option: str = "--out") -> None:
    """UserError if something is at ``path``, or nothing can be: before anything is computed for it."""
    named = f"{option} {path}".lstrip()
    if os.path.lexists(path):
        raise UserError(f"{named}: already exists; name a new file")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError:
        raise UserError(f"{named}: {path.parent} is not a folder that can be written to") from None


@contextmanager
def new_file(path: Path, option: str = "--out") -> Iterator[Path]:
    """A temporary name to write to, as `whole_file` gives it. UserError: as `check_new`'s, or it cannot be written."""
    check_new(path, option)
    try:
        with whole_file(path) as partial:
            yield partial
    except OSError as error:
        raise UserError(f"{option} {path}: {error.strerror or error}") from None
