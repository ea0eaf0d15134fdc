"""The figures of several servers together, from those of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.runs.routing_figures import routing_figures
from kvtwin.sim.cluster.recording import ClusterRecorder


def summary_of_all(
    total: dict[str, Any], parts: Sequence[dict[str, Any]], recorder: ClusterRecorder, configs: Sequence[EngineConfig]
) -> dict[str, Any]:
    """The figures of all replicas under the keys of one, and what the router did.

    ``total`` is the summary of what was recorded of all, in which all is right that is counted per request or step;
    ``parts`` are the replicas' own summaries.
    """
    summary = dict(total)
    for name in summary:
        if name in _ADDED:
            summary[name] = _added([part[name] for part in parts])
        elif name.startswith("kv_memory_") and len(set(configs)) > 1:
            summary[name] = None  # shares of pools of different sizes
    queries, hits = (summary[f"external_prefix_cache_{what}"] for what in ("queries", "hits"))
    summary["external_prefix_cache_hit_rate"] = hits / queries if queries else 0.0
    busy_s = [part["device_busy_s"] for part in parts]
    weights = busy_s if any(busy_s) else [1.0] * len(parts)
    usage = sum(part["kv_cache_usage_mean"] * weight for part, weight in zip(parts, weights, strict=True))
    summary["kv_cache_usage_mean"] = usage / sum(weights)
    summary["kv_cache_usage_peak"] = max(part["kv_cache_usage_peak"] for part in parts)
    summary["kv_cache_peak_used_blocks"] = max(part["kv_cache_peak_used_blocks"] for part in parts)
    return summary | routing_figures(recorder, parts)


_ADDED = frozenset(
    f"{what}_{unit}" for what in ("swapped_out", "swapped_in", "offloaded", "loaded") for unit in ("blocks", "bytes")
) | {
    "swap_fallbacks",
    "external_prefix_cache_queries",
    "external_prefix_cache_hits",
    "preempted_external_prefix_cache_queries",
    "preempted_external_prefix_cache_hits",
    "host_transfer_s",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
}
"""Keys of what was copied to and from the host, and of blocks' lives: of all replicas they are the sum."""


def _added(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _added([value[key] for value in values]) for key in values[0]}
    return sum(values)
