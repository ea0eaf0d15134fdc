"""A run's summary as text: the layout of ``vllm bench serve``, then a section on the KV cache."""

from __future__ import annotations

from typing import Any

from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.misses.text import miss_rows
from kvtwin.experiments.options.output import OutputOptions
from kvtwin.experiments.runs.block_metrics import block_metric_rows
from kvtwin.experiments.runs.host_figures import host_rows
from kvtwin.experiments.runs.latencies import percentile_name
from kvtwin.experiments.runs.memory_use import MEMORY_PARTS

WIDTH = 50
_LATENCY_TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


def bench_lines(summary: dict[str, Any], output: OutputOptions) -> list[str]:
    """The part that ``vllm bench serve`` prints, line for line."""
    lines = [_title(" Serving Benchmark Result ", "=")]
    lines += [_row("Successful requests:", summary["completed"]), _row("Failed requests:", summary["failed"])]
    if summary["max_concurrency"] is not None:
        lines.append(_row("Maximum request concurrency:", summary["max_concurrency"]))
    if summary["request_rate"] != "inf":
        lines.append(_row("Request rate configured (RPS):", f"{summary['request_rate']:.2f}"))
    lines += [
        _row("Benchmark duration (s):", f"{summary['duration']:.2f}"),
        _row("Total input tokens:", summary["total_input_tokens"]),
        _row("Total generated tokens:", summary["total_output_tokens"]),
        _row("Request throughput (req/s):", f"{summary['request_throughput']:.2f}"),
    ]
    if summary["request_goodput"] is not None:
        lines.append(_row("Request goodput (req/s):", f"{summary['request_goodput']:.2f}"))
    lines += [
        _row("Output token throughput (tok/s):", f"{summary['output_throughput']:.2f}"),
        _row("Peak output token throughput (tok/s):", f"{summary['max_output_tokens_per_s']:.2f}"),
        _row("Peak concurrent requests:", f"{summary['max_concurrent_requests']:.2f}"),
        _row("Total token throughput (tok/s):", f"{summary['total_token_throughput']:.2f}"),
    ]
    for name in output.percentile_metrics:
        title, short = _LATENCY_TITLES[name]
        lines.append(_title(title, "-"))
        lines.append(_row(f"Mean {short} (ms):", f"{summary[f'mean_{name}_ms']:.2f}"))
        lines.append(_row(f"Median {short} (ms):", f"{summary[f'median_{name}_ms']:.2f}"))
        for percent in map(percentile_name, output.metric_percentiles):
            lines.append(_row(f"{percent.upper()} {short} (ms):", f"{summary[f'{percent}_{name}_ms']:.2f}"))
    if "spec_decode_num_drafts" in summary:
        lines += _speculation_lines(summary)
    return lines


def _speculation_lines(summary: dict[str, Any]) -> list[str]:
    rates = summary["spec_decode_per_position_acceptance_rates"]
    return [
        _title("Speculative Decoding", "-"),
        _row("Acceptance rate (%):", f"{summary['spec_decode_acceptance_rate']:.2f}"),
        _row("Acceptance length:", f"{summary['spec_decode_acceptance_length']:.2f}"),
        _row("Drafts:", summary["spec_decode_num_drafts"]),
        _row("Draft tokens:", summary["spec_decode_draft_tokens"]),
        _row("Accepted tokens:", summary["spec_decode_accepted_tokens"]),
        "Per-position acceptance (%):",
        *(_row(f"  Position {position}:", _percent(rate)) for position, rate in enumerate(rates)),
    ]


def cache_lines(summary: dict[str, Any]) -> list[str]:
    """The KV cache section: every hit rate with its name and denominator."""
    num_groups = len(summary["cache_groups"])
    usable = summary["num_gpu_blocks"] - 1
    hits, queries = summary["prefix_cache_hits"], summary["prefix_cache_queries"]
    lines = [
        _title(f" KV Cache (vLLM {VLLM_VERSION}) ", "-"),
        _row(
            "Usable blocks:",
            f"{usable} x {summary['block_size']} tokens" if num_groups == 1 else f"{usable} for {num_groups} groups",
        ),
        _row(
            "Peak / mean usage (%):",
            f"{_percent(summary['kv_cache_usage_peak'])} / {_percent(summary['kv_cache_usage_mean'])}",
        ),
        _row(
            "Peak running / waiting requests:", f"{summary['max_running_requests']} / {summary['max_waiting_requests']}"
        ),
        *_memory_rows(summary),
        _row("Hit tokens / queried tokens:", f"{'unknown' if hits is None else hits} / {queries}"),
        _row("Hit rate, tokens (%):", _percent(summary["prefix_cache_hit_rate"])),
        _row("  possible with an infinite cache (%):", _percent(summary["possible_hit_rate"])),
        _row("  of the last 1000 requests (%):", _percent(summary["prefix_cache_hit_rate_last_1000_requests"])),
        _row(
            f"  of {summary['prompt_full_blocks']} full prompt blocks (%):",
            _percent(summary["prefix_cache_block_hit_rate"]),
        ),
        _row("  requests with a hit (%):", _percent(summary["request_hit_rate"])),
    ]
    lines += [_row(label, value) for label, value in miss_rows(summary)]
    if summary["preempted_prefix_cache_requests"]:
        lines.append(
            _row(
                "Resumed requests, hit / queried tokens:",
                f"{summary['preempted_prefix_cache_hits']} / {summary['preempted_prefix_cache_queries']}",
            )
        )
    lines += [
        _row("Evicted blocks:", summary["num_evictions"]),
        *(_row(label, value) for label, value in block_metric_rows(summary)),
        _row("Preemptions (requests):", f"{summary['num_preemptions']} ({summary['num_requests_preempted']})"),
    ]
    if summary["first_preemption_s"] is not None:
        lines.append(_row("  first preemption after (s):", f"{summary['first_preemption_s']:.2f}"))
    lines.append(_row("Recomputed tokens:", _with_share(summary["recomputed_tokens"], summary["scheduled_tokens"])))
    lines += [_row(label, value) for label, value in host_rows(summary)]
    lines += [
        *(
            [_row("Forked samples / copied blocks:", f"{summary['num_forks']} / {summary['num_block_copies']}")]
            if summary["num_forks"]
            else []
        ),
        _row("Phantom hit tokens:", summary["phantom_hit_tokens"]),
        _row("Steps:", summary["steps"]),
        _row("Rejected requests:", summary["rejected"]),
    ]
    lines += [_row(f"  {reason}:", count) for reason, count in summary["rejected_by_reason"].items()]
    if summary["unfinished"]:
        lines.append(_row("Unfinished requests:", summary["unfinished"]))
    return [*lines, *_session_lines(summary), "=" * WIDTH]


def _session_lines(summary: dict[str, Any]) -> list[str]:
    """What later turns found of their history, and what retention held for them."""
    lines = []
    if summary["history_tokens"]:
        lines.append(_row("History still cached at next turn (%):", _percent(summary["history_survival"])))
        for bucket in summary["survival_by_pause"]:
            start_s, end_s, turns = bucket["pause_from_s"], bucket["pause_to_s"], bucket["turns"]
            pauses = f"from {start_s} s on" if end_s is None else f"{start_s} to {end_s} s"
            survival = "none shared" if bucket["survival"] is None else _percent(bucket["survival"])
            lines.append(_row(f"  pauses {pauses} ({turns} turns):", survival))
    if summary["retention"] != "lru":
        mean, peak = summary["pinned_blocks_mean"], summary["pinned_blocks_peak"]
        forced, yielded = summary["pins_released_by_force"], summary["pins_released_under_pressure"]
        lines += [
            _row("Pinned blocks, peak / mean:", f"{peak} / {mean:.0f}"),
            _row("Pins released, forced / pressure:", f"{forced} / {yielded}"),
        ]
        if summary["mean_queue_ms_first_turns"] is not None:
            queue_ms, ttft_ms = summary["mean_queue_ms_first_turns"], summary["mean_ttft_ms_first_turns"]
            lines.append(_row("First turns, mean queue / TTFT (ms):", f"{queue_ms:.0f} / {ttft_ms or 0:.0f}"))
    return lines


def _memory_rows(summary: dict[str, Any]) -> list[str]:
    """What the memory was used for while requests waited, if any did."""
    if summary["kv_memory_live_mean_while_waiting"] is None:
        return []
    live, *others = (_percent(summary[f"kv_memory_{part}_mean_while_waiting"]) for part in MEMORY_PARTS)
    return [
        _row("Live tokens while requests wait (%):", live),
        _row("  reserved / internal / external / free:", " / ".join(others)),
    ]


def _title(text: str, fill: str) -> str:
    return f"{text:{fill}^{WIDTH}}"


def _row(label: str, value: object) -> str:
    return f"{label:<40} {value!s:<10}".rstrip()


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.2f}"


def _with_share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.2%} of all)" if part else "0"
