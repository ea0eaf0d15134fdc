"""The capacity curve, to be read."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.shares import percent_text
from kvtwin.experiments.display.tables import Part, table
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.workload import Workload


def text_parts(workload: Workload, facts: dict[str, Any]) -> list[Part]:
    """What was looked at, a row per size, and what a cache that never evicts would do."""
    lines = [
        f"kvtwin curve: {workload.path.name} ({workload.format_name}), "
        f"{number_of(facts['num_requests'], 'request')} in order of arrival, blocks of {facts['block_size']} tokens"
    ]
    if facts["num_refused"]:
        lines.append(f"{number_of(facts['num_refused'], 'request')} left out: no output, or longer than max_model_len")
    if facts["num_requests_unknown_prefix"]:
        lines.append(
            f"{number_of(facts['num_requests_unknown_prefix'], 'prompt')} known by length only, which count as misses"
        )
    one_cache, notes_of_replicas, never = [], [], "A cache that never evicts hits"
    if num_replicas := facts.get("data_parallel_size"):
        lines.append(f"{num_replicas} replicas, router {facts['router']}: blocks are those of each")
        one_cache, never = ["one cache (%)"], "Caches that never evict hit"
        notes_of_replicas = [f"one cache: a single one of {num_replicas} times as many blocks, which all share."]
    is_exact = facts["sample"] is None
    rows, notes = [], []
    for row in facts["points"] + facts["marks"]:
        name = row.get("name", "")
        if row["blocks"] is None:
            rows.append((name, *"----", *("-" * len(one_cache))))
            notes.append(f"{name}: cannot hold a request of max_model_len (--max-model-len)")
            continue
        possible = row["hit_rate"] / facts["ceiling_hit_rate"] if facts["ceiling_hit_rate"] else 0.0
        other = row["optimal_hit_rate" if is_exact else "hit_rate_standard_error"]
        one = [row["one_cache_hit_rate"]] if one_cache else []
        rows.append((name, f"{row['blocks']:,}", *map(percent_text, (row["hit_rate"], possible, other, *one))))
    headings = ("", "blocks", "hit rate (%)", "of possible (%)", "optimal (%)" if is_exact else "+- (%)", *one_cache)
    return [
        *lines,
        "",
        table(headings, rows),
        *notes,
        "",
        f"{never} {facts['ceiling_hit_rate']:.2%}, with {facts['distinct_blocks']:,} "
        f"blocks; {facts['blocks_for_90_percent_of_hits']:,} hit 90% of that.",
        "optimal: clairvoyant eviction, which no policy beats."
        if is_exact
        else f"Estimated from {100 * facts['sample']:g}% of the blocks; +- is one standard error.",
        *notes_of_replicas,
        "The curve takes requests one after another. A replay hits less where many run at once in a small cache,",
        "or where sessions wait for answers.",
    ]
