"""GPUs by name: the shipped ones, or the user's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.engine.sizing.memory_budget import GIB
from kvtwin.experiments.catalogue.names import plain_name, unknown_name
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.sim.gpu_spec import GpuSpec

_GPUS = Path(__file__).parent / "gpus.yaml"
_MOST = 1_000_000
_FACTORS = {
    "memory_efficiency": (0.1, 1.2),
    "matrix_efficiency": (0.1, 1.2),
    "decode_attention_beside_prompts": (1.0, 10.0),
    "multiprocessors": (0, 1000),
}
"""Measured numbers without a unit, and their limits; left out, `GpuSpec` has a value for any GPU."""

_OPTIONAL = ("memory_is_measured", "source", "notes", "interconnect", *_FACTORS)


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
    wanted = plain_name(name_or_path)
    exact = [name for name in gpus if wanted in (plain_name(name), plain_name(name.rsplit("-", 1)[0]))]
    matches = exact or [name for name in gpus if wanted in _beginnings(name)]
    if len(matches) == 1:
        return _gpu(matches[0], gpus[matches[0]], "gpus.yaml")
    if matches:
        raise UserError(f"GPU {name_or_path!r} is ambiguous: {', '.join(matches)}")
    raise UserError(unknown_name("GPU", name_or_path, list(gpus), "a path to a YAML file"))


def _beginnings(name: str) -> set[str]:
    """The names that leave out last parts of ``name``, or its GB: an "H20" is no beginning of "H200-141GB"."""
    parts = name.split("-")
    return {plain_name("-".join(parts[:length])) for length in range(1, len(parts) + 1)} | {
        plain_name(name.removesuffix("GB"))
    }


def _gpu(name: str, fields: Any, source: str) -> GpuSpec:
    rates = ("memory_gb_per_s", "bf16_tflops", "fp8_tflops", "nvlink_gb_per_s", "pcie_gb_per_s")
    numbers = ("memory_gib", *rates)
    may_be_0 = ("fp8_tflops", "nvlink_gb_per_s", "compute_capability")
    if not isinstance(fields, dict):
        raise UserError(f"{source}: GPU {name}: expected fields, found {fields!r}")
    fields = {"compute_capability": 0} | fields
    numbers = (*numbers, "compute_capability")
    unknown = set(fields) - {*numbers, *_OPTIONAL}
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
        compute_capability=float(fields["compute_capability"]),
        source=str(fields.get("source", source)),
        notes=str(fields.get("notes", "")),
        interconnect=str(fields.get("interconnect", "")),
        **_factors(fields, f"{source}: GPU {name}"),
    )


def _factors(fields: dict[str, Any], where: str) -> dict[str, float]:
    given = {name: fields[name] for name in _FACTORS if name in fields}
    for name, value in given.items():
        low, high = _FACTORS[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise UserError(f"{where}: {name} must be a number from {low:g} to {high:g}, not {value!r}")
    if given.get("decode_attention_beside_prompts", 1) > 1 and not given.get("multiprocessors"):
        raise UserError(f"{where}: decode_attention_beside_prompts needs multiprocessors too: how many the GPU has")
    return {name: float(value) for name, value in given.items()}


def _read_gpus(path: Path) -> dict[str, Any]:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected GPUs by name")
    return data
