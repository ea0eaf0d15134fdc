"""Models by name: the shipped config.json files, those of a local Hugging Face cache, or the user's own."""

from __future__ import annotations

import json
import os
from functools import cache
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


def unconfirmed() -> dict[str, str]:
    """What no public copy of a model's config.json confirmed, by the model's name."""
    return {config["_name"]: config["_unconfirmed"] for config in _model_configs() if "_unconfirmed" in config}


def load_model(name_or_path: str) -> ModelShape:
    """The shape of the model of this name or path. UserError: as `load_model_config`, or a bad field."""
    return _shape(*load_model_config(name_or_path))


def load_model_config(name_or_path: str) -> tuple[dict[str, Any], str]:
    """A config.json and its model's name: of a file or folder, from the catalogue, or from the Hugging Face cache.

    A name of the catalogue may leave out its organisation, and be in any case. An alias, such as the instruct variant
    of a base model, has the same shape. UserError: no such model, with the nearest names; or a config.json that cannot
    be read.
    """
    path = Path(name_or_path)
    if os.path.isdir(path):
        return _read_folder(path), str(name_or_path)
    if path.suffix == ".json" or os.path.isfile(path):
        return _read_json(path), str(name_or_path)
    wanted = name_or_path.lower()
    for config in _model_configs():
        for full_name in (str(config["_name"]), *config.get("_aliases", ())):
            if wanted in (full_name.lower(), full_name.split("/")[-1].lower()):
                return config, full_name
    snapshot = _cached_snapshot(name_or_path)
    if snapshot is not None:
        return _read_folder(snapshot), name_or_path
    raise UserError(unknown_name("model", name_or_path, _names_and_aliases(), "a path to a config.json or its folder"))


@cache
def _model_configs() -> tuple[dict[str, Any], ...]:
    return tuple(_read_json(path) for path in sorted(_CONFIGS.glob("*.json")))


def _names_and_aliases() -> list[str]:
    return [name for config in _model_configs() for name in (config["_name"], *config.get("_aliases", ()))]


def _cached_snapshot(name: str) -> Path | None:
    """The newest downloaded revision of a model in the local Hugging Face cache, if it is there."""
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    cache_folder = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    snapshots = cache_folder / f"models--{name.replace('/', '--')}" / "snapshots"
    try:
        found = [folder for folder in snapshots.iterdir() if (folder / "config.json").is_file()]
    except (OSError, ValueError):
        return None
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)


def _read_folder(folder: Path) -> dict[str, Any]:
    """A folder's config.json. ModelOpt may state its quantisation in a file of its own, which vLLM reads too."""
    config = _read_json(folder / "config.json")
    quantization = folder / "hf_quant_config.json"
    if quantization.is_file() and not config.get("quantization_config"):
        config = {**config, "quantization_config": _read_json(quantization)}
    return config


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
