"""What the KV memory is used for, step by step: the token states of the PagedAttention paper (its figure 2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.sim.recording import Recorder

MEMORY_PARTS = ("live", "reserved", "internal", "external", "free")
"""What a slot can be: it holds a token of a running request; it is reserved for one that will come; it is held and
stays empty; it is free, while somebody lacks memory; it is free, and nobody does."""


def memory_use(recorder: Recorder, config: EngineConfig) -> dict[str, Any]:
    """Shares of the KV memory: means over the busy time, means over the part of it in which requests wait, and peak.

    The peak is the step with the most live tokens. None where there is no such step, and, of the shares, with several
    cache groups, which fill blocks differently, or forks, which share partly filled ones.
    """
    shares = memory_shares(recorder, config)
    steps = recorder.steps
    busy_ns = as_array(steps.end_ns) - as_array(steps.start_ns)
    weights = busy_ns if busy_ns.any() else np.ones_like(busy_ns)
    waits = as_array(steps.waiting) > 0
    figures: dict[str, Any] = {}
    is_known = len(config.group_specs) == 1 and config.parallel_sampling != "fork" and len(waits) > 0
    for part, share in shares.items():
        figures[f"kv_memory_{part}_mean"] = _mean(share, weights) if is_known else None
        figures[f"kv_memory_{part}_mean_while_waiting"] = _mean(share, weights * waits) if is_known else None
        figures[f"kv_memory_{part}_peak"] = float(share[shares["live"].argmax()]) if is_known else None
    figures["waiting_time_share"] = _mean(waits, weights)
    figures["mean_running_while_waiting"] = _mean(as_array(steps.running), weights * waits)
    return figures


def memory_shares(recorder: Recorder, config: EngineConfig) -> dict[str, NDArray[np.float64]]:
    """Per step, the share of the pool's slots that each of MEMORY_PARTS has; they add up to 1.

    A block that requests share counts once. With pages nothing is reserved: empty is the end of each last block.
    """
    steps = recorder.steps
    num_slots = (config.num_blocks - 1) * config.block_size
    free = as_array(steps.free_blocks) * config.block_size
    unfilled = as_array(steps.unfilled_slots)
    internal = unfilled if config.allocator == "paged" else as_array(steps.unused_slots)
    lacks_memory = as_array(steps.lacks_memory) > 0
    parts = {
        "live": num_slots - free - unfilled,
        "reserved": unfilled - internal,
        "internal": internal,
        "external": np.where(lacks_memory, free, 0),
        "free": np.where(lacks_memory, 0, free),
    }
    return {part: slots / num_slots for part, slots in parts.items()}


def _mean(values: NDArray[Any], weights: NDArray[Any]) -> float | None:
    return float(np.average(values, weights=weights)) if weights.any() else None
