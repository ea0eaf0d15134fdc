"""The options that say how the sessions of a workload are played: which of them, from when on, with what pauses."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Number, Whole

_PAUSE_S = Number("S", 0, 1e9)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Sessions (conversations and agents, whose turns wait for the answers before)."""

    num_sessions: int | None = option(None, Whole(), "only N sessions, drawn at random (--seed)")
    session_rate: float | None = option(
        None,
        Number("RATE", 1e-9, 1e9, infinite=True),
        "sessions start at this rate per second, drawn as --burstiness says; inf: all at once",
    )
    concurrent_sessions: int | None = option(
        None, Whole(), "N users play the sessions one after another; 1: each session alone"
    )
    think_time: float | None = option(None, _PAUSE_S, "every pause between an answer and the next turn, in seconds")
    think_time_scale: float | None = option(None, Number("X", 0, 1e6), "stretch the pauses of the trace")
    think_time_cap: float | None = option(None, _PAUSE_S, "longest pause, in seconds; longer ones are cut to it")
