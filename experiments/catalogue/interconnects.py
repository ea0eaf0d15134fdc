"""Links between GPUs by name: the measured ones, or the user's own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import read_yaml
from kvtwin.sim.interconnect import Interconnect
from kvtwin.sim.tabulated import Curve, rising

_INTERCONNECTS = Path(__file__).parent / "interconnects.yaml"
_MOST_US = 1e9


def interconnect_names() -> list[str]:
    """Names of the kinds that were measured."""
    return list(_read(_INTERCONNECTS))


def load_interconnect(name_or_path: str, num_gpus: int) -> Interconnect:
    """Links between ``num_gpus`` GPUs: of a kind in the catalogue, or of a YAML file with one kind in the same form.

    A number of GPUs that was not measured gets the times of the next smaller one that was, longer in the proportion of
    the steps of a ring (n - 1). UserError: no such kind, or a bad file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        kinds = _read(path)
        if len(kinds) != 1:
            raise UserError(f"{path}: expected one interconnect, found {len(kinds)}")
        ((name, fields),) = kinds.items()
        return _interconnect(str(name), fields, num_gpus, str(path))
    kinds = _read(_INTERCONNECTS)
    if name_or_path not in kinds:
        raise UserError(f"--interconnect: expected {', '.join(kinds)} or a YAML file, got {name_or_path!r}")
    return _interconnect(name_or_path, kinds[name_or_path], num_gpus, _INTERCONNECTS.name)


def _interconnect(name: str, fields: Any, num_gpus: int, where: str) -> Interconnect:
    tables = fields.get("all_reduce_us") if isinstance(fields, dict) else None
    if not isinstance(tables, dict) or not tables or set(fields) - {"all_reduce_us", "source"}:
        raise UserError(f"{where}: {name}: expected all_reduce_us: a table of bytes and microseconds by number of GPUs")
    for count, table in tables.items():
        _check(f"{where}: {name}: {count}", count, table)
    source = str(fields.get("source", where))
    measured = max((count for count in tables if count <= num_gpus), default=min(tables))
    if measured != num_gpus:
        source += f" ({measured} GPUs; {num_gpus} assumed to take {(num_gpus - 1) / (measured - 1):g} times as long)"
    sizes = sorted(tables[measured])
    scale = 1000 * (num_gpus - 1) / (measured - 1)
    times_ns = rising([tables[measured][size] * scale for size in sizes])
    return Interconnect(name, num_gpus, Curve(sizes, times_ns), source)


def _check(where: str, count: Any, table: Any) -> None:
    if not isinstance(count, int) or count < 2:
        raise UserError(f"{where}: expected a number of GPUs from 2")
    if not isinstance(table, dict) or len(table) < 2:
        raise UserError(f"{where}: expected at least two sizes in bytes, with microseconds")
    for size, time_us in table.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UserError(f"{where}: expected bytes as whole numbers from 1, got {size!r}")
        if isinstance(time_us, bool) or not isinstance(time_us, int | float) or not 0 <= time_us <= _MOST_US:
            raise UserError(f"{where}: {size}: expected microseconds from 0 to {_MOST_US:g}, got {time_us!r}")


def _read(path: Path) -> dict[str, Any]:
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected interconnects by name")
    return data
