"""YAML files that a user may write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from experiments.errors import UserError


def read_yaml(path: Path) -> Any:
    """What is in the file. UserError: it cannot be read, or is no YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
