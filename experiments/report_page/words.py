"""The figures of a run in words."""

from __future__ import annotations

from typing import Any

from kvtwin.workloads.counts import number_of


def tiles(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The main figures."""
    hit_rate = summary["prefix_cache_hit_rate"]
    return [
        ("of prompt tokens hit", "unknown" if hit_rate is None else f"{hit_rate:.1%}"),
        ("preemptions", f"{summary['num_preemptions']:,}"),
        ("of the cache in use at the peak", f"{summary['kv_cache_usage_peak']:.1%}"),
        ("blocks evicted", f"{summary['num_evictions']:,}"),
        ("mean time to first token", _duration(summary["mean_ttft_ms"])),
        ("mean time per output token", _duration(summary["mean_tpot_ms"])),
        ("output tokens per second", f"{summary['output_throughput']:,.0f}"),
    ]


def sentences(summary: dict[str, Any]) -> list[str]:
    """The result of the run."""
    told = [
        f"{summary['completed']:,} of {number_of(summary['num_prompts'], 'request')} were served in "
        f"{summary['duration']:,.1f} simulated seconds, {summary['request_throughput']:.2f} per second; "
        f"{summary['rejected']:,} were rejected.",
        f"Of {summary['num_gpu_blocks'] - 1:,} usable blocks, {summary['kv_cache_peak_used_blocks']:,} were in use at "
        f"the peak, and {summary['kv_cache_usage_mean']:.1%} on average while the device was busy. At most "
        f"{number_of(summary['max_running_requests'], 'request')} ran and {summary['max_waiting_requests']:,} waited.",
    ]
    hits, queries = summary["prefix_cache_hits"], summary["prefix_cache_queries"]
    if hits is None:
        told.append("The hit rate is unknown: the trace does not say which prompts share prefixes.")
    elif queries:
        told.append(
            f"{hits:,} of {queries:,} prompt tokens were found in the cache ({hits / queries:.1%}); "
            f"{summary['num_evictions']:,} cached blocks were evicted."
        )
    if summary["num_preemptions"]:
        share = summary["recomputed_tokens"] / max(1, summary["scheduled_tokens"])
        told.append(
            f"{number_of(summary['num_preemptions'], 'preemption')} of "
            f"{number_of(summary['num_requests_preempted'], 'request')}, first after "
            f"{summary['first_preemption_s']:,.1f} s; {share:.1%} of all tokens were recomputed."
        )
    else:
        told.append("No request was preempted.")
    told.append(
        f"TTFT was {_duration(summary['median_ttft_ms'])} at the median and {_duration(summary['mean_ttft_ms'])} "
        f"on average; TPOT was {_duration(summary['median_tpot_ms'])} and {_duration(summary['mean_tpot_ms'])}."
    )
    return told


def _duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:,.1f} ms"
    return f"{milliseconds / 1000:,.{2 if milliseconds < 100_000 else 0}f} s"
