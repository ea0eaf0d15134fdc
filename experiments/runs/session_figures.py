"""Figures of sessions: how much history later turns found, what retention held for it, and its cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.sim.recording import NEVER, Recorder
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

PAUSE_BOUNDS_S = (0, 1, 10, 60, 300, 1800)
"""Where the buckets of pauses begin; the last has no end."""


def session_figures(recorder: Recorder, config: EngineConfig) -> dict[str, Any]:
    """Survival of histories, pinned blocks, and waiting by turn; None where no such request was admitted."""
    columns = recorder.requests
    admitted = as_array(columns.first_scheduled_ns) != NEVER
    pause_ns = as_array(columns.pause_ns)
    later = admitted & (pause_ns != NEVER)
    history = as_array(columns.history_tokens)
    found = np.minimum(as_array(columns.hit_tokens), history)
    retention = recorder.scheduler.retention
    return {
        "retention": config.retention,
        "later_turns": int(later.sum()),
        "history_tokens": int(history[later].sum()),
        "history_hit_tokens": int(found[later].sum()),
        "history_survival": _survival(found[later], history[later]),
        "survival_by_pause": _survival_by_pause(pause_ns[later], found[later], history[later]),
        **_pinned_blocks(recorder),
        "pins_released_by_force": retention.num_forced_releases,
        "pins_released_under_pressure": retention.num_pressure_releases,
        **_waiting(recorder, "first_turns", admitted & ~later),
        **_waiting(recorder, "later_turns", later),
    }


def _survival(found: NDArray[np.int64], history: NDArray[np.int64]) -> float | None:
    """Share of the histories' tokens that were still cached."""
    total = int(history.sum())
    return int(found.sum()) / total if total else None


def _survival_by_pause(
    pause_ns: NDArray[np.int64], found: NDArray[np.int64], history: NDArray[np.int64]
) -> list[dict[str, Any]]:
    buckets = []
    for start_s, end_s in pairwise((*PAUSE_BOUNDS_S, None)):
        inside = pause_ns >= start_s * SECOND_NS
        if end_s is not None:
            inside &= pause_ns < end_s * SECOND_NS
        if inside.any():
            buckets.append(
                {
                    "pause_from_s": start_s,
                    "pause_to_s": end_s,
                    "turns": int(inside.sum()),
                    "history_tokens": int(history[inside].sum()),
                    "survival": _survival(found[inside], history[inside]),
                }
            )
    return buckets


def _pinned_blocks(recorder: Recorder) -> dict[str, Any]:
    """Blocks in pins, where steps take time weighed by their durations, as the cache's usage is."""
    steps = recorder.steps
    pinned, busy_ns = as_array(steps.pinned_blocks), as_array(steps.end_ns) - as_array(steps.start_ns)
    mean = np.average(pinned, weights=busy_ns if busy_ns.any() else None) if len(pinned) else 0.0
    return {"pinned_blocks_mean": float(mean), "pinned_blocks_peak": int(pinned.max(initial=0))}


def _waiting(recorder: Recorder, name: str, rows: NDArray[np.bool_]) -> dict[str, Any]:
    """Mean waiting of some requests for admission and for the first token, ms."""
    columns = recorder.requests
    arrival = as_array(columns.arrival_ns)
    has_token = rows & (as_array(columns.first_token_ns) != NEVER)
    queued, ttft = as_array(columns.first_scheduled_ns) - arrival, as_array(columns.first_token_ns) - arrival
    return {
        f"mean_queue_ms_{name}": float(queued[rows].mean()) / MILLISECOND_NS if rows.any() else None,
        f"mean_ttft_ms_{name}": float(ttft[has_token].mean()) / MILLISECOND_NS if has_token.any() else None,
    }
