"""The options of ``kvtwin limit``."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Number, Several
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.options.sweep import WORKERS

SHARE = Number("SHARES", 0, 1, above=True)


@dataclass(frozen=True, kw_only=True)
class LimitOptions(ReplayOptions):
    """The limit."""

    memory_fractions: tuple[float, ...] = option(
        (), Several(SHARE), "such as 0.5,0.7,0.92 (else --gpu-memory-utilization)"
    )
    hit_rate_within: float | None = option(
        None,
        Number("X", 0, 1),
        "the hit rate must be at most X below what a cache would hit that never evicts (0.02: two points)",
    )
    precision: float = option(
        0.05,
        Number("SHARE", 0.001, 1),
        "how far apart the highest rate that held and the lowest that failed may be",
    )
    workers: int | None = option(None, WORKERS, "processes of this machine (else one per CPU)")
