"""A validation's YAML file: a workload, and options without their dashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import check_mapping, read_yaml
from kvtwin.experiments.options.reading import option_key, read_options
from kvtwin.experiments.options.validate import ValidateOptions
from kvtwin.experiments.sweeps.spec import named_options

_SPEC_KEYS = ("trace", "options")


def with_specification(given: dict[str, Any]) -> dict[str, Any]:
    """``given`` with the options of a YAML file below them, if WORKLOAD is one. UserError: the file has a mistake."""
    path = Path(given.get("trace") or "")
    if path.suffix not in (".yaml", ".yml"):
        return given
    spec = check_mapping(str(path), read_yaml(path), _SPEC_KEYS)
    if not spec.get("trace"):
        raise UserError(f"{path}: trace: expected a workload file, or demo")
    options = named_options(str(path), "options", spec.get("options") or {})
    below = {option_key(name): value for name, value in options.items()}
    try:
        read_options(ValidateOptions, below | {"trace": spec["trace"]}, "kvtwin validate")
    except UserError as error:
        raise UserError(f"{path}: options: {error}") from None
    return below | given | {"trace": str(spec["trace"])}
