"""Lifetimes of blocks in a run's summary: vLLM's histograms ``vllm:kv_block_*``, where they are measured."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from kvtwin.engine.block_metrics import BUCKETS_S, Histogram
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.time_units import SECOND_NS

_LABELS = {
    "kv_block_lifetime_seconds": "Block lifetime, mean (s):",
    "kv_block_idle_before_evict_seconds": "  idle before eviction, mean (s):",
    "kv_block_reuse_gap_seconds": "  between two hits, mean (s):",
}


def block_metric_figures(recorder: Recorder) -> dict[str, Any]:
    """Each histogram as Prometheus has it: cumulative counts by upper bound, count and sum in seconds."""
    metrics = recorder.scheduler.block_metrics
    if metrics is None:
        return {}
    return {
        "kv_block_lifetime_seconds": _as_plain_data(metrics.lifetimes),
        "kv_block_idle_before_evict_seconds": _as_plain_data(metrics.idle_times),
        "kv_block_reuse_gap_seconds": _as_plain_data(metrics.reuse_gaps),
    }


def block_metric_rows(summary: dict[str, Any]) -> list[tuple[str, object]]:
    """Labels and values for the cache section."""
    return [
        (label, f"{histogram['sum'] / histogram['count']:.2f} of {histogram['count']}")
        for name, label in _LABELS.items()
        if (histogram := summary.get(name)) and histogram["count"]
    ]


def _as_plain_data(histogram: Histogram) -> dict[str, Any]:
    cumulative = accumulate(histogram.counts)
    bounds = (*(f"{bound:g}" for bound in BUCKETS_S), "+Inf")
    return {
        "buckets": dict(zip(bounds, cumulative, strict=True)),
        "count": sum(histogram.counts),
        "sum": histogram.sum_ns / SECOND_NS,
    }
