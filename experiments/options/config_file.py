"""``--config FILE.yaml``: flags from a file, as in vLLM; flags on the command line override them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.reading import option_key


def with_config_file(given: Mapping[str, Any], path: Path | None) -> dict[str, Any]:
    """``given``, completed by the YAML file ``path``: a mapping whose keys are flags without dashes.

    UserError: the file cannot be read, or is no mapping.
    """
    if path is None:
        return dict(given)
    from kvtwin.experiments.files.yaml_files import read_yaml

    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of flags, without their dashes, to values")
    below: dict[str, Any] = {}
    for name, value in data.items():
        key = option_key(name)
        if isinstance(value, bool) and key.startswith("no_"):
            key, value = key[3:], not value
        below[key] = value
    return {**below, **given}
