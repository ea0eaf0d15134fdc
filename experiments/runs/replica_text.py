"""The section of a summary's text that tells of several replicas."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.shares import figure_cell, percent_text
from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.display.values import cell_text
from kvtwin.experiments.runs.text import row, title

_COLUMNS = {
    "requests": "num_prompts",
    "prompt tokens": "total_input_tokens",
    "hit rate (%)": "prefix_cache_hit_rate",
    "evicted blocks": "num_evictions",
    "preemptions": "num_preemptions",
    "mean usage (%)": "kv_cache_usage_mean",
    "busy (s)": "device_busy_s",
    "mean TTFT (ms)": "mean_ttft_ms",
}

_PAGE_COLUMNS = 80


def replica_parts(summary: dict[str, Any]) -> list[Part]:
    """A row per replica, and what the router did; nothing where there is one server."""
    if "replicas" not in summary:
        return []
    queries = summary["prefix_cache_queries"]
    misrouted = summary["misrouted_tokens"]
    share = f" ({misrouted / queries:.2%} of all)" if queries else ""
    rows = [
        [str(number), *(figure_cell(name, replica[name]) for name in _COLUMNS.values())]
        for number, replica in enumerate(summary["replicas"])
    ]
    imbalance = (summary["load_imbalance"], summary["token_imbalance"], summary["token_imbalance_overall"])
    passes = []
    if "forward_passes" in summary:
        words = f"{summary['forward_passes']} / {summary['idle_rank_passes']}"
        passes = [row("Passes together / ranks without requests:", words)]
    return [
        title(f" {len(rows)} Replicas ", "-"),
        table(("replica", *_COLUMNS), rows, page_columns=_PAGE_COLUMNS),
        row("Most loaded / mean, requests:", cell_text(imbalance[0])),
        row("Most loaded / mean, tokens (overall):", f"{cell_text(imbalance[1])} ({cell_text(imbalance[2])})"),
        row("Cached elsewhere when sent (tokens):", summary["overlap_regret_tokens"]),
        row("Computed though cached elsewhere:", f"{misrouted}{share}"),
        row("Hit rate of one cache of this size (%):", percent_text(summary["one_cache_hit_rate"])),
        *passes,
        "=" * 50,
    ]
