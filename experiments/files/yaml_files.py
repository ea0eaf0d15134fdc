"""YAML files that a user may write."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from kvtwin.experiments.errors import UserError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, which is ten times as fast, where PyYAML was built with it."""


def read_yaml(path: Path) -> Any:
    """What is in the file. UserError: it cannot be read, or is no YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None


def check_mapping(where: str, data: Any, known: Sequence[str]) -> dict[str, Any]:
    """``data`` if it is a mapping with ``known`` keys only. UserError: what stands ``where``, and the nearest keys."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected a mapping with some of {', '.join(known)}")
    for key in data:
        if key not in known:
            near = ", ".join(get_close_matches(str(key), known, n=2, cutoff=0.4)) or known[0]
            raise UserError(f"{where}: {key}: unknown key, expected one of {', '.join(known)}; nearest: {near}")
    return data
