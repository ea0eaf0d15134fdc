"""Models and GPUs by name: the shipped catalogue, or the user's own files."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path
from typing import Any

from kvtwin.engine.sizing.hf_config import read_hf_config
from kvtwin.engine.sizing.memory_budget import GIB
from kvtwin.engine.sizing.model_shape import ModelConfigError, ModelShape
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.sim.gpu_spec import GpuSpec

_HERE = Path(__file__).parent
_MODELS = _HERE / "models"
_GPUS = _HERE / "gpus.yaml"
_MOST = 1_000_000
_MOST_LAYERS = 10_000


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
    raise UserError(_unknown("model", name_or_path, model_names(), "a path to a config.json"))


def gpu_names() -> list[str]:
    """Names of the catalogue's GPUs, in the file's order."""
    return list(_read_gpus(_GPUS))


def load_gpu(name_or_path: str) -> GpuSpec:
    """A GPU from the catalogue, or from a YAML file that describes one in the same fields.

    A name may leave out its last parts, or the unit of its memory, where that is unambiguous. UserError: no such
    GPU, or a bad file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        gpus = _read_gpus(path)
        if len(gpus) != 1:
            raise UserError(f"{path}: expected one GPU, found {len(gpus)}")
        name, fields = next(iter(gpus.items()))
        return _gpu(str(name), fields, str(path))
    gpus = _read_gpus(_GPUS)
    wanted = _plain(name_or_path)
    exact = [name for name in gpus if wanted in (_plain(name), _plain(name.rsplit("-", 1)[0]))]
    matches = exact or [name for name in gpus if wanted in _beginnings(name)]
    if len(matches) == 1:
        return _gpu(matches[0], gpus[matches[0]], "gpus.yaml")
    if matches:
        raise UserError(f"GPU {name_or_path!r} is ambiguous: {', '.join(matches)}")
    raise UserError(_unknown("GPU", name_or_path, list(gpus), "a path to a YAML file"))


def _plain(name: str) -> str:
    return "".join(c for c in name.lower().removeprefix("nvidia") if c.isalnum())


def _beginnings(name: str) -> set[str]:
    """The names that leave out last parts of ``name``, or its GB: an "H20" is no beginning of "H200-141GB"."""
    parts = name.split("-")
    return {_plain("-".join(parts[:length])) for length in range(1, len(parts) + 1)} | {_plain(name.removesuffix("GB"))}


def _unknown(kind: str, name: str, known: list[str], otherwise: str) -> str:
    by_plain = {_plain(entry.split("/")[-1]): entry for entry in known}
    near = difflib.get_close_matches(_plain(name.split("/")[-1]), by_plain, n=3, cutoff=0.4)
    hint = f"nearest: {', '.join(by_plain[n] for n in near)}" if near else f"known: {', '.join(known)}"
    return f"no {kind} {name!r} in the catalogue; {hint}; or give {otherwise}"


def _model_configs() -> list[dict[str, Any]]:
    return [_read_json(path) for path in sorted(_MODELS.glob("*.json"))]


def _shape(config: dict[str, Any], name: str) -> ModelShape:
    for part in (config, config.get("text_config")):
        layers = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if isinstance(layers, int) and layers > _MOST_LAYERS:
            raise UserError(f"{name}: num_hidden_layers: expected at most {_MOST_LAYERS}, got {layers}")
    try:
        return read_hf_config(config, name)
    except ModelConfigError as error:
        raise UserError(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{name}: config.json: a field is missing, or has a value that it cannot have: {error}"
        ) from None


def _gpu(name: str, fields: Any, source: str) -> GpuSpec:
    rates = ("memory_gb_per_s", "bf16_tflops", "fp8_tflops", "nvlink_gb_per_s", "pcie_gb_per_s")
    numbers = ("memory_gib", *rates)
    may_be_0 = ("fp8_tflops", "nvlink_gb_per_s")
    if not isinstance(fields, dict):
        raise UserError(f"{source}: GPU {name}: expected fields, found {fields!r}")
    unknown = set(fields) - {*numbers, "memory_is_measured", "source", "notes"}
    if unknown:
        raise UserError(f"{source}: GPU {name}: unknown field {min(unknown)}; known: {', '.join(numbers)}")
    for field in numbers:
        value = fields.get(field)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST
        if not fits or (value == 0 and field not in may_be_0):
            least = "at least 0" if field in may_be_0 else "more than 0"
            raise UserError(f"{source}: GPU {name}: {field} must be a number of {least}, up to {_MOST}, not {value!r}")
    return GpuSpec(
        name=name,
        memory_bytes=round(fields["memory_gib"] * GIB),
        memory_is_measured=bool(fields.get("memory_is_measured", False)),
        memory_bytes_per_s=fields["memory_gb_per_s"] * 1e9,
        bf16_flops_per_s=fields["bf16_tflops"] * 1e12,
        fp8_flops_per_s=fields["fp8_tflops"] * 1e12,
        nvlink_bytes_per_s=fields["nvlink_gb_per_s"] * 1e9,
        pcie_bytes_per_s=fields["pcie_gb_per_s"] * 1e9,
        source=str(fields.get("source", source)),
        notes=str(fields.get("notes", "")),
    )


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


def _read_gpus(path: Path) -> dict[str, Any]:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected GPUs by name")
    return data
