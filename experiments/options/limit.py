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
    """Limit."""

    memory_fractions: tuple[float, ...] = option(
        (), Several(SHARE), "find the limit at each of these, such as 0.5,0.7,0.92 (default: --gpu-memory-utilization)"
    )
    hit_rate_within: float | None = option(
        None,
        Number("X", 0, 1),
        "the hit rate may be at most X below that of an infinite cache (0.02: two points)",
    )
    precision: float = option(
        0.05,
        Number("SHARE", 0.001, 1),
        "relative gap between the highest rate that holds and the lowest that fails, at which to stop",
    )
    workers: int | None = option(None, WORKERS, "worker processes on this machine (default: one per CPU)")
