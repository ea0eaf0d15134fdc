"""The figures of a run: those of ``vllm bench serve``, and what the KV cache did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.sizing.cache_plan import CachePlan
from kvtwin.engine.vllm_version import VLLM_VERSION
from kvtwin.experiments.options.output import OutputOptions
from kvtwin.experiments.runs.image_figures import image_figures
from kvtwin.experiments.runs.latencies import Latencies, as_array, served_rows
from kvtwin.experiments.runs.memory_use import memory_use
from kvtwin.experiments.runs.session_figures import session_figures
from kvtwin.sim.recording import NEVER, Recorder, RequestColumns
from kvtwin.workloads.time_units import SECOND_NS


@dataclass(frozen=True)
class RunContext:
    """The settings of a run that its summary repeats."""

    model: str
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None


def summarise(
    recorder: Recorder, config: EngineConfig, plan: CachePlan, context: RunContext, output: OutputOptions
) -> dict[str, Any]:
    """All figures of a run as plain data. Token and block counts are ints, times seconds or milliseconds."""
    served = served_rows(recorder)
    records, rows = np.unique(as_array(recorder.requests.record_index)[served], return_index=True)
    completed = len(records)
    input_tokens = int(as_array(recorder.requests.prompt_tokens)[served][rows].sum())
    output_tokens = int(as_array(recorder.requests.output_tokens)[served].sum())
    duration_s = _duration_ns(recorder) / SECOND_NS
    latencies = Latencies(recorder)
    not_served = recorder.refused + recorder.rejected
    good = latencies.num_good(output.goodput) if output.goodput else None
    bench = {
        "endpoint_type": "kvtwin",
        "backend": "kvtwin",
        "label": None,
        "model_id": context.model,
        "tokenizer_id": context.model,
        "vllm_version": VLLM_VERSION,
        "server": config.server.title,
        "server_evidence": config.server.evidence,
        "num_prompts": context.num_prompts,
        "request_rate": "inf" if isinf(context.request_rate) else context.request_rate,
        "burstiness": context.burstiness,
        "max_concurrency": context.max_concurrency,
        "duration": duration_s,
        "completed": completed,
        "completed_samples": int(served.sum()),
        "failed": not_served.total() + len(recorder.unfinished) + recorder.num_unsent,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _per_second(completed, duration_s),
        "request_goodput": None if good is None else _per_second(good, duration_s),
        "output_throughput": _per_second(output_tokens, duration_s),
        "total_token_throughput": _per_second(input_tokens + output_tokens, duration_s),
        "max_output_tokens_per_s": max(recorder.output_tokens_per_s.values(), default=0),
        "max_concurrent_requests": recorder.peak_requests,
        "rtfx": 0.0,
        "rejected": not_served.total(),
        "rejected_by_reason": dict(not_served),
    }
    return (
        bench
        | latencies.statistics(output.metric_percentiles)
        | _hit_figures(recorder, config)
        | _cache_figures(recorder, config)
        | memory_use(recorder, config)
        | image_figures(recorder.scheduler.statistics.encoder, config)
        | _length_figures(recorder, plan if config.allocator == "paged" else None)
        | (_speculation_figures(recorder) if config.speculation else {})
        | session_figures(recorder, config)
    )


def _hit_figures(recorder: Recorder, config: EngineConfig) -> dict[str, Any]:
    """The hit rate under every definition; None where nothing is known about shared prefixes.

    All are of the requests that were admitted, at their first admission; forks look nothing up.
    """
    statistics = recorder.statistics
    counts = statistics.prefix_cache
    columns = recorder.requests
    num_forks = statistics.num_forks
    known = recorder.num_requests_unknown_prefix < len(columns.request_id) + len(recorder.unfinished) - num_forks
    admitted = (as_array(columns.first_scheduled_ns) != NEVER) & (as_array(columns.forked_tokens) == 0)
    block_tokens = config.alignment_tokens if config.enable_prefix_caching else config.block_size
    full_blocks = int((as_array(columns.prompt_tokens)[admitted] // block_tokens).sum())
    return {
        "prefix_cache_queries": counts.queries,
        "prefix_cache_hits": counts.hits if known else None,
        "prefix_cache_hit_rate": _share(counts.hits, counts.queries) if known else None,
        "prefix_cache_hit_rate_last_1000_requests": statistics.recent_hit_rate.rate if known else None,
        "prefix_cache_block_hit_rate": _share(counts.hits, full_blocks * block_tokens) if known else None,
        "mean_request_hit_rate": _mean_share(columns, admitted) if known else None,
        "prompt_full_blocks": full_blocks,
        "hit_alignment_tokens": block_tokens,
        "requests_with_hit": counts.requests_with_hit if known else None,
        "request_hit_rate": _share(counts.requests_with_hit, int(admitted.sum())) if known else None,
        "preempted_prefix_cache_requests": counts.preempted_requests,
        "preempted_prefix_cache_queries": counts.preempted_queries,
        "preempted_prefix_cache_hits": counts.preempted_hits,
        "num_requests_unknown_prefix": recorder.num_requests_unknown_prefix,
        "num_forks": num_forks,
        "num_block_copies": statistics.num_block_copies,
        "phantom_hit_tokens": statistics.phantom_hit_tokens,
    }


def _cache_figures(recorder: Recorder, config: EngineConfig) -> dict[str, Any]:
    statistics = recorder.statistics
    steps = recorder.steps
    usable_blocks = config.num_blocks - 1
    busy_ns = as_array(steps.end_ns) - as_array(steps.start_ns)
    free_blocks = as_array(steps.free_blocks)
    usage = 1 - free_blocks / usable_blocks
    # Weighed by the steps' durations, unless no step takes time.
    mean_usage = np.average(usage, weights=busy_ns if busy_ns.any() else None) if len(usage) else 0.0
    return {
        "num_gpu_blocks": config.num_blocks,
        "block_size": config.block_size,
        "cache_groups": [asdict(spec) for spec in config.group_specs],
        "steps": statistics.num_steps,
        "num_preemptions": statistics.num_preemptions,
        "first_preemption_s": _first_preemption_s(recorder),
        "num_requests_preempted": int((as_array(recorder.requests.preemptions) > 0).sum()),
        "num_evictions": recorder.num_evictions,
        "scheduled_tokens": statistics.num_scheduled_tokens,
        "recomputed_tokens": statistics.num_recomputed_tokens,
        "unfinished": len(recorder.unfinished) + recorder.num_unsent,
        "kv_cache_usage_peak": float(usage.max(initial=0.0)),
        "kv_cache_peak_used_blocks": usable_blocks - int(free_blocks.min(initial=usable_blocks)),
        "kv_cache_usage_mean": float(mean_usage),
        "max_running_requests": max(steps.running, default=0),
        "max_waiting_requests": max(steps.waiting, default=0),
        "device_busy_s": int(busy_ns.sum()) / SECOND_NS,
    }


def _first_preemption_s(recorder: Recorder) -> float | None:
    """Seconds from the first arrival to the step that was first to preempt; None without one."""
    at = np.flatnonzero(as_array(recorder.steps.preempted))
    if not len(at) or not len(recorder.requests.arrival_ns):
        return None
    return (recorder.steps.scheduled_ns[at[0]] - min(recorder.requests.arrival_ns)) / SECOND_NS


def _length_figures(recorder: Recorder, plan: CachePlan | None) -> dict[str, Any]:
    """Lengths of the served requests, prompt and output, and how many of such a length fill the blocks of ``plan``."""
    served = served_rows(recorder)
    columns = recorder.requests
    tokens = (as_array(columns.prompt_tokens) + as_array(columns.output_tokens))[served]
    mean, p95 = (float(np.mean(tokens)), float(np.percentile(tokens, 95))) if len(tokens) else (None, None)
    longest = plan.max_model_len if plan else None
    lengths = {"max_model_len": longest, "mean_length": mean, "p95_length": p95}
    return {
        "mean_request_tokens": mean,
        "p95_request_tokens": p95,
        **{
            f"max_concurrency_at_{name}": None if tokens is None or plan is None else plan.concurrency_at(ceil(tokens))
            for name, tokens in lengths.items()
        },
    }


def _speculation_figures(recorder: Recorder) -> dict[str, Any]:
    """What ``vllm bench serve`` reports of a server that speculates, from the counters ``vllm:spec_decode_*``."""
    counts = recorder.statistics.speculation
    return {
        "spec_decode_acceptance_rate": 100 * _share(counts.num_accepted_tokens, counts.num_draft_tokens),
        "spec_decode_acceptance_length": 1 + _share(counts.num_accepted_tokens, counts.num_drafts),
        "spec_decode_num_drafts": counts.num_drafts,
        "spec_decode_draft_tokens": counts.num_draft_tokens,
        "spec_decode_accepted_tokens": counts.num_accepted_tokens,
        "spec_decode_per_position_acceptance_rates": [
            _share(accepted, counts.num_drafts) for accepted in counts.num_accepted_tokens_per_pos
        ],
    }


def _duration_ns(recorder: Recorder) -> int:
    """From the first arrival to the last completion."""
    arrivals, finishes = recorder.requests.arrival_ns, recorder.requests.finish_ns
    return max(finishes) - min(arrivals) if len(arrivals) else 0


def _mean_share(columns: RequestColumns, counted: NDArray[np.bool_]) -> float:
    """The mean over the requests of the share of each one's prompt that hit."""
    prompts, hits = as_array(columns.prompt_tokens)[counted], as_array(columns.hit_tokens)[counted]
    return float(np.mean(hits / prompts)) if len(prompts) else 0.0


def _per_second(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
