"""A run's summary as text: the layout of ``vllm bench serve``, then a section on the KV cache."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.display.shares import percent_text
from kvtwin.experiments.misses.text import miss_rows
from kvtwin.experiments.options.output import OutputOptions
from kvtwin.experiments.runs.block_metrics import block_metric_rows
from kvtwin.experiments.runs.host_figures import host_rows
from kvtwin.experiments.runs.image_figures import image_rows
from kvtwin.experiments.runs.latencies import percentile_name
from kvtwin.experiments.runs.memory_use import MEMORY_PARTS
from kvtwin.workloads.counts import number_of

WIDTH = 50
_LATENCY_TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


def bench_lines(summary: dict[str, Any], output: OutputOptions) -> list[str]:
    """The part that ``vllm bench serve`` prints, line for line."""
    lines = [title(" Serving Benchmark Result ", "=")]
    lines += [row("Successful requests:", summary["completed"]), row("Failed requests:", summary["failed"])]
    if summary["max_concurrency"] is not None:
        lines.append(row("Maximum request concurrency:", summary["max_concurrency"]))
    if summary["request_rate"] != "inf":
        lines.append(row("Request rate configured (RPS):", f"{summary['request_rate']:.2f}"))
    lines += [
        row("Benchmark duration (s):", f"{summary['duration']:.2f}"),
        row("Total input tokens:", summary["total_input_tokens"]),
        row("Total generated tokens:", summary["total_output_tokens"]),
        row("Request throughput (req/s):", f"{summary['request_throughput']:.2f}"),
    ]
    if summary["request_goodput"] is not None:
        lines.append(row("Request goodput (req/s):", f"{summary['request_goodput']:.2f}"))
    lines += [
        row("Output token throughput (tok/s):", f"{summary['output_throughput']:.2f}"),
        row("Peak output token throughput (tok/s):", f"{summary['max_output_tokens_per_s']:.2f}"),
        row("Peak concurrent requests:", f"{summary['max_concurrent_requests']:.2f}"),
        row("Total token throughput (tok/s):", f"{summary['total_token_throughput']:.2f}"),
    ]
    for name in output.percentile_metrics:
        latency, short = _LATENCY_TITLES[name]
        lines.append(title(latency, "-"))
        lines.append(row(f"Mean {short} (ms):", f"{summary[f'mean_{name}_ms']:.2f}"))
        lines.append(row(f"Median {short} (ms):", f"{summary[f'median_{name}_ms']:.2f}"))
        for percent in map(percentile_name, output.metric_percentiles):
            lines.append(row(f"{percent.upper()} {short} (ms):", f"{summary[f'{percent}_{name}_ms']:.2f}"))
    if "spec_decode_num_drafts" in summary:
        lines += _speculation_lines(summary)
    return lines


def _speculation_lines(summary: dict[str, Any]) -> list[str]:
    rates = summary["spec_decode_per_position_acceptance_rates"]
    return [
        title("Speculative Decoding", "-"),
        row("Acceptance rate (%):", f"{summary['spec_decode_acceptance_rate']:.2f}"),
        row("Acceptance length:", f"{summary['spec_decode_acceptance_length']:.2f}"),
        row("Drafts:", summary["spec_decode_num_drafts"]),
        row("Draft tokens:", summary["spec_decode_draft_tokens"]),
        row("Accepted tokens:", summary["spec_decode_accepted_tokens"]),
        "Per-position acceptance (%):",
        *(row(f"  Position {position}:", percent_text(rate)) for position, rate in enumerate(rates)),
    ]


def cache_lines(summary: dict[str, Any]) -> list[str]:
    """The KV cache section: every hit rate with its name and denominator."""
    num_groups = len(summary["cache_groups"])
    usable = summary["num_gpu_blocks"] - 1
    hits, queries = summary["prefix_cache_hits"], summary["prefix_cache_queries"]
    lines = [
        title(f" KV Cache ({summary['server']}) ", "-"),
        *([summary["server_evidence"]] if summary["server_evidence"] else []),
        row(
            "Usable blocks:",
            f"{usable} x {summary['block_size']} tokens" if num_groups == 1 else f"{usable} for {num_groups} groups",
        ),
        row(
            "Peak / mean usage (%):",
            f"{percent_text(summary['kv_cache_usage_peak'])} / {percent_text(summary['kv_cache_usage_mean'])}",
        ),
        row(
            "Peak running / waiting requests:", f"{summary['max_running_requests']} / {summary['max_waiting_requests']}"
        ),
        *_memory_rows(summary),
        row("Hit tokens / queried tokens:", f"{'unknown' if hits is None else hits} / {queries}"),
        row("Hit rate, tokens (%):", percent_text(summary["prefix_cache_hit_rate"])),
        row("  possible with an infinite cache (%):", percent_text(summary["possible_hit_rate"])),
        row(
            "  of the last 1000, as vLLM logs it (%):",
            percent_text(summary["prefix_cache_hit_rate_last_1000_requests"]),
        ),
        row(
            f"  of {summary['prompt_full_blocks']} full prompt blocks (%):",
            percent_text(summary["prefix_cache_block_hit_rate"]),
        ),
        row("  mean of the requests' own (%):", percent_text(summary["mean_request_hit_rate"])),
        row("  requests with a hit (%):", percent_text(summary["request_hit_rate"])),
    ]
    lines += [row(label, value) for label, value in miss_rows(summary)]
    if summary["preempted_prefix_cache_requests"]:
        lines.append(
            row(
                "Resumed requests, hit / queried tokens:",
                f"{summary['preempted_prefix_cache_hits']} / {summary['preempted_prefix_cache_queries']}",
            )
        )
    lines += [
        row("Evicted blocks:", summary["num_evictions"]),
        *(row(label, value) for label, value in block_metric_rows(summary)),
        row("Preemptions (requests):", f"{summary['num_preemptions']} ({summary['num_requests_preempted']})"),
    ]
    if summary["first_preemption_s"] is not None:
        lines.append(row("  first preemption after (s):", f"{summary['first_preemption_s']:.2f}"))
    lines.append(row("Recomputed tokens:", _with_share(summary["recomputed_tokens"], summary["scheduled_tokens"])))
    lines += [row(label, value) for label, value in image_rows(summary)]
    lines += [row(label, value) for label, value in host_rows(summary)]
    lines += [
        *(
            [row("Forked samples / copied blocks:", f"{summary['num_forks']} / {summary['num_block_copies']}")]
            if summary["num_forks"]
            else []
        ),
        row("Phantom hit tokens:", summary["phantom_hit_tokens"]),
        row("Steps:", summary["steps"]),
        row("Rejected requests:", summary["rejected"]),
    ]
    lines += [row(f"  {reason}:", count) for reason, count in summary["rejected_by_reason"].items()]
    if summary["unfinished"]:
        lines.append(row("Unfinished requests:", summary["unfinished"]))
    return [*lines, *_session_lines(summary), "=" * WIDTH]


def _session_lines(summary: dict[str, Any]) -> list[str]:
    """What later turns found of their history, and what retention held for them."""
    lines = []
    if summary["history_tokens"]:
        lines.append(row("History still cached at next turn (%):", percent_text(summary["history_survival"])))
        for bucket in summary["survival_by_pause"]:
            start_s, end_s, turns = bucket["pause_from_s"], bucket["pause_to_s"], bucket["turns"]
            pauses = f"from {start_s} s on" if end_s is None else f"{start_s} to {end_s} s"
            survival = "none shared" if bucket["survival"] is None else percent_text(bucket["survival"])
            lines.append(row(f"  pauses {pauses} ({number_of(turns, 'turn')}):", survival))
    if summary["retention"] != "lru":
        mean, peak = summary["pinned_blocks_mean"], summary["pinned_blocks_peak"]
        forced, yielded = summary["pins_released_by_force"], summary["pins_released_under_pressure"]
        lines += [
            row("Pinned blocks, peak / mean:", f"{peak} / {mean:.0f}"),
            row("Pins released, forced / pressure:", f"{forced} / {yielded}"),
        ]
        if summary["mean_queue_ms_first_turns"] is not None:
            queue_ms, ttft_ms = summary["mean_queue_ms_first_turns"], summary["mean_ttft_ms_first_turns"]
            lines.append(row("First turns, mean queue / TTFT (ms):", f"{queue_ms:.0f} / {ttft_ms or 0:.0f}"))
    return lines


def _memory_rows(summary: dict[str, Any]) -> list[str]:
    """What the memory was used for while requests waited, if any did."""
    if summary["kv_memory_live_mean_while_waiting"] is None:
        return []
    live, *others = (percent_text(summary[f"kv_memory_{part}_mean_while_waiting"]) for part in MEMORY_PARTS)
    return [
        row("Live tokens while requests wait (%):", live),
        row("  reserved / internal / external / free:", " / ".join(others)),
    ]


def title(text: str, fill: str) -> str:
    """The line over a section."""
    return f"{text:{fill}^{WIDTH}}"


def row(label: str, value: object) -> str:
    """A figure and what it is."""
    return f"{label:<40} {value!s:<10}".rstrip()


def _with_share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.2%} of all)" if part else "0"
