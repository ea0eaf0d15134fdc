"""Models by name: the shipped config.json files, or the user's own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.engine.sizing.model_shape import ModelConfigError, ModelShape
from kvtwin.experiments.catalogue.names import unknown_name
from kvtwin.experiments.errors import UserError

_CONFIGS = Path(__file__).parent / "configs"


def model_names() -> list[str]:
    """Hugging Face names of the catalogue's models, sorted."""
    return sorted(config["_name"] for config in _model_configs())


def load_model(name_or_path: str) -> ModelShape:
    """The shape of the model of this name or path. UserError: as `load_model_config`, or a bad field."""
    return _shape(*load_model_config(name_or_path))


def load_model_config(name_or_path: str) -> tuple[dict[str, Any], str]:
    """A config.json and its model's name: from the catalogue, with or without its organisation and in any case, or a
    file.

    UserError: no such model, with the nearest names; or a config.json that cannot be read.
    """
    path = Path(name_or_path)
    if os.path.isdir(path):
        path = path / "config.json"
    if path.suffix == ".json" or os.path.isfile(path):
        return _read_json(path), str(name_or_path)
    wanted = name_or_path.lower()
    for config in _model_configs():
        full_name = str(config["_name"])
        if wanted in (full_name.lower(), full_name.split("/")[-1].lower()):
            return config, full_name
    raise UserError(unknown_name("model", name_or_path, model_names(), "a path to a config.json"))


def _model_configs() -> list[dict[str, Any]]:
    return [_read_json(path) for path in sorted(_CONFIGS.glob("*.json"))]


def _shape(config: dict[str, Any], name: str) -> ModelShape:
    try:
        return read_hf_config(config, name)
    except ModelConfigError as error:
        raise UserError(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{name}: config.json: a field is missing, or has a value that it cannot have: {error}"
        ) from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object")
    return data
