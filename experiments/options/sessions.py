"""The options that say how the sessions of a workload are played: which ones, when they start, and their pauses."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Number, Whole

_PAUSE_S = Number("S", 0, 1e9)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """Sessions (conversations and agents; a turn waits for the answer before it)."""

    num_sessions: int | None = option(None, Whole(), "use only N sessions, drawn at random (--seed)")
    session_rate: float | None = option(
        None,
        Number("RATE", 1e-9, 1e9, infinite=True),
        "start this many sessions per second, with gaps drawn by --burstiness; inf: all at once",
    )
    concurrent_sessions: int | None = option(
        None, Whole(), "N users play the sessions one after another; 1: one session at a time"
    )
    think_time: float | None = option(
        None, _PAUSE_S, "pause between an answer and the next turn, in seconds, instead of the trace's pauses"
    )
    think_time_scale: float | None = option(None, Number("X", 0, 1e6), "multiply the trace's pauses by X")
    think_time_cap: float | None = option(None, _PAUSE_S, "longest pause, in seconds; longer ones are shortened to it")
