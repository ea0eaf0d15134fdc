"""A real run, and the simulation of it."""

from __future__ import annotations

import os
from typing import Any

from kvtwin.experiments.api.given import given_options
from kvtwin.experiments.api.keeping import returned_in_any_case
from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.validation.kept import validate_and_keep
from kvtwin.experiments.validation.specification import with_specification


def validate(workload: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Serve a workload for real, on a CPU or a GPU, simulate the same, compare, and check (docs/validate.md).

    As ``kvtwin validate --json`` prints it; ``checks`` says whether every decision and every token was the same.
    ``workload`` is a file, ``demo``, or a YAML file of ``trace`` and ``options``; ``options`` are those of ``kvtwin
    validate --help``, and ``out`` keeps both runs; where it cannot be written in the end, a RuntimeWarning says so.
    UserError: settings that cannot be, or too little memory.
    """
    given = with_specification(options | {"trace": os.fspath(workload)})
    read = given_options(ValidateOptions, "kvtwin validate", given)
    return returned_in_any_case(lambda show: validate_and_keep(read, show))
