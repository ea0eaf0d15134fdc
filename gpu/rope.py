"""Rotary embedding: how fast each pair of a head's values turns with the position."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any

import torch
from torch import Tensor

from kvtwin.engine.sizing.hf_fields import Fields
from kvtwin.gpu.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Rope:
    """Pair ``i`` of a head's ``d`` values turns by theta ** (-2i / d) / divisors[i] radians per position."""

    theta: float
    divisors: tuple[float, ...] = ()
    """How a context longer than the trained one is scaled; empty: not at all."""

    def frequencies(self, head_dim: int, device: torch.device) -> Tensor:
        """Radians per position of each pair, [head_dim / 2], float32."""
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        frequencies = 1.0 / self.theta**exponents
        return frequencies / torch.tensor(self.divisors, device=device) if self.divisors else frequencies


def read_rope(fields: Fields, head_dim: int) -> Rope:
    """From ``rope_theta`` and ``rope_scaling``, or from ``rope_parameters``, which replaces both in newer files.

    DeviceError: a kind of scaling that is not known, or a number missing.
    """
    name = fields.name
    values = fields.first("rope_parameters", "rope_scaling") or {}
    if not isinstance(values, dict):
        raise DeviceError(f"{name}: rope_scaling must be a table or null, not {values!r}")
    for part in (fields.get("partial_rotary_factor"), values.get("partial_rotary_factor")):
        if part not in (None, 1):
            raise DeviceError(f"{name}: partial_rotary_factor {part!r} cannot be executed; expected 1")
    theta = positive_number(values.get("rope_theta", fields.get("rope_theta")), name, "rope_theta", 10000.0)
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, (positive_number(values.get("factor"), name, "rope factor"),) * (head_dim // 2))
    if kind == "llama3":
        return Rope(theta, _llama3_divisors(name, values, theta, head_dim))
    raise DeviceError(f"{name}: rope type {kind!r} cannot be executed; expected default, linear or llama3")


def _llama3_divisors(name: str, values: dict[str, Any], theta: float, head_dim: int) -> tuple[float, ...]:
    """Llama 3.1's rule: pairs that turn often within the original context keep their frequency, those that turn less
    than once lose ``factor``, and between the frequency is blended linearly. Source: ``apply_scaling`` of Meta's code.
    """
    factor = positive_number(values.get("factor"), name, "rope factor")
    low = positive_number(values.get("low_freq_factor"), name, "rope low_freq_factor", 1.0)
    high = positive_number(values.get("high_freq_factor"), name, "rope high_freq_factor", 4.0)
    key = "original_max_position_embeddings"
    original_tokens = positive_number(values.get(key), name, f"rope {key}")
    if high <= low:
        raise DeviceError(f"{name}: rope high_freq_factor {high:g} must be above low_freq_factor {low:g}")
    divisors = []
    for pair in range(head_dim // 2):
        turns = original_tokens * theta ** (-2 * pair / head_dim) / (2 * pi)
        kept = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / (kept + (1 - kept) / factor))
    return tuple(divisors)


def positive_number(value: Any, name: str, key: str, default: float | None = None) -> float:
    """A field of a model's file; ``default`` where it is missing. DeviceError: no positive number."""
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise DeviceError(f"{name}: {key} must be a positive number, not {value!r}")
    return float(value)
