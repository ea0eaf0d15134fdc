"""What ``kvtwin isolation`` measures: a YAML file (experiments/configs/isolation.yaml has every key)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.files.yaml_files import check_mapping, read_yaml
from kvtwin.experiments.sweeps.spec import named_options

_MOST = 1_000_000


@dataclass(frozen=True)
class Attack:
    """A victim sends prompts with secrets; soon after each, an attacker sends a probe that guesses the secret."""

    probes: int
    template_tokens: int
    """What all prompts begin with."""
    secret_tokens: int
    question_tokens: int
    """What all prompts end with, new in each."""
    output_tokens: int
    interval_s: float
    delay_s: float
    background_prompt_tokens: int
    background_output_tokens: int
    background_requests_per_s: tuple[float, ...]
    block_sizes: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class IsolationSpec:
    """A whole measurement."""

    path: Path
    options: dict[str, Any]
    """Options of every replay."""
    attack: Attack
    trace: str
    tenants: tuple[int, ...]


def read_isolation_spec(path: Path) -> IsolationSpec:
    """Read a specification. UserError: file, key, what was expected."""
    data = check_mapping(str(path), read_yaml(path), ("options", "attack", "workload"))
    options = named_options(str(path), "options", data.get("options") or {})
    names = tuple(field.name for field in fields(Attack))
    attack = check_mapping(f"{path}: attack", data.get("attack"), names)
    workload = check_mapping(f"{path}: workload", data.get("workload"), ("trace", "tenants"))
    read = {name: _value(f"{path}: attack: {name}", attack.get(name), _KINDS[name]) for name in names}
    if read["delay_s"] >= read["interval_s"]:
        raise UserError(f"{path}: attack: delay_s: expected less than interval_s, got {read['delay_s']:g}")
    if not isinstance(workload.get("trace"), str):
        raise UserError(f"{path}: workload: trace: expected a workload file, or demo")
    return IsolationSpec(
        path,
        options,
        Attack(**read),
        workload["trace"],
        _value(f"{path}: workload: tenants", workload.get("tenants"), [int, 1]),
    )


_COUNT, _TIME = (int, 1), (float, 1e-6)
_KINDS: dict[str, Any] = {
    "probes": (int, 2),
    "template_tokens": (int, 0),
    "secret_tokens": _COUNT,
    "question_tokens": _COUNT,
    "output_tokens": _COUNT,
    "interval_s": _TIME,
    "delay_s": _TIME,
    "background_prompt_tokens": _COUNT,
    "background_output_tokens": _COUNT,
    "background_requests_per_s": [float, 0],
    "block_sizes": [int, 1],
    "seed": (int, 0),
}
"""Per key its type and its least value; in brackets, a list of them."""


def _value(where: str, value: Any, kind: Any) -> Any:
    number, least = kind
    if isinstance(kind, tuple):
        return _number(where, value, number, least)
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: expected a list of numbers, got {value!r}")
    return tuple(_number(where, each, number, least) for each in value)


def _number(where: str, value: Any, number: type, least: float) -> Any:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not least <= value <= _MOST or (number is int and not isinstance(value, int)):
        wanted = "a whole number" if number is int else "a number"
        raise UserError(f"{where}: expected {wanted} from {least:g} to {_MOST}, got {value!r}")
    return number(value)
