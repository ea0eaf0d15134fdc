"""The options of commands that have none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Nothing to choose."""
