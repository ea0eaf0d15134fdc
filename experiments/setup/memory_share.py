"""The share of a GPU's memory that a server may use, whatever its flag is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from kvtwin.experiments.errors import UserError

Options = TypeVar("Options")

_OPTION_OF: Mapping[str, str] = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static"}


def memory_share(options: Any) -> float | None:
    """What ``options`` say; None: the server's own formula decides, or the server has no such flag."""
    name = _OPTION_OF.get(options.server)
    return getattr(options, name) if name else None


def with_memory_share(options: Options, share: float | None) -> Options:
    """``options`` with this share; with None they stay. UserError: the server has no such flag."""
    if share is None:
        return options
    server = getattr(options, "server", "vllm")
    if server not in _OPTION_OF:
        raise UserError(f"--memory-fractions: only with --server {' or '.join(_OPTION_OF)}")
    changed: Any = options
    return replace(changed, **{_OPTION_OF[server]: share})
