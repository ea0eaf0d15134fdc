"""The options of ``kvtwin isolation``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtwin.experiments.options.fields import argument
from kvtwin.experiments.options.kinds import File
from kvtwin.experiments.options.output import ResultOptions


@dataclass(frozen=True, kw_only=True)
class IsolationOptions(ResultOptions):
    """Measurement."""

    spec: Path | None = argument(File("CONFIG.yaml"), "what to measure (default: the bundled configuration)", None)
