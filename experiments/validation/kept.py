"""A validation whose two runs lie in a folder for as long as they are needed, or for good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.records.folder import check_free, folder_beside, write_run_folder
from kvtwin.experiments.validation.validate import validate


def validate_and_keep(options: ValidateOptions) -> dict[str, Any]:
    """What `validate` finds; the folder ``--out`` keeps both runs, if there is one. UserError: as `validate`'s."""
    if options.out:
        check_free(options.out)
    with _staging(options.out) as folder:
        facts = validate(options, folder)
        if options.out:
            write_run_folder(options.out, {}, folder)
    return facts


@contextmanager
def _staging(out: Path | None) -> Iterator[Path]:
    """A temporary folder for both runs, where they can be moved to ``out`` from."""
    if out is None:
        with TemporaryDirectory() as name:
            yield Path(name)
        return
    with folder_beside(out, "-runs") as folder:
        yield folder
