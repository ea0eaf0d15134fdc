"""A validation whose two runs lie in a folder for as long as they are needed, or for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.records.folder import check_free, write_run_folder
from kvtwin.experiments.validation.validate import validate


def validate_and_keep(
    options: ValidateOptions, show: Callable[[dict[str, Any]], object] = lambda _: None
) -> dict[str, Any]:
    """What `validate` finds; the folder ``--out`` keeps both runs, if there is one. UserError: as `validate`'s.

    ``show`` gets the result first, and the folder is written even if it fails: neither is lost with the other.
    """
    if options.out:
        check_free(options.out)
    with TemporaryDirectory(prefix="kvtwin-") as name:
        validation = validate(options, Path(name))
        try:
            show(validation.facts)
        finally:
            if options.out:
                write_run_folder(options.out, validation.files(), Path(name))
    return validation.facts
