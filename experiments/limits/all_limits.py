"""The limits that options ask for: a search per memory fraction."""

from __future__ import annotations

import os
from typing import Any

from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.limits.bracket import RateGrid
from kvtwin.experiments.limits.search import Criterion, Search, find_limits
from kvtwin.experiments.options.limit import LimitOptions
from kvtwin.experiments.runs.latencies import percentile_name
from kvtwin.experiments.setup.load import shape_load
from kvtwin.experiments.setup.memory_share import memory_share, with_memory_share
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.experiments.sweeps.executors import local_processes
from kvtwin.workloads.workload import Workload


def limit_of_options(options: LimitOptions, workload: Workload | None = None) -> dict[str, Any]:
    """The limits of every server as plain data. ``workload`` is sent instead of the options' trace.

    UserError: no server can be replayed, or the rate is not open.
    """
    rate_option, base = _rate(options)
    if workload is None:
        sent = open_trace(options.trace, options)
        warn_of(sent)
    else:
        sent = workload
    load = shape_load(options, sent)
    grid = RateGrid.of_precision(base, options.precision)
    criteria = _criteria(options)
    searches = [Search(asked, rate_option, grid, criteria, workload) for asked in _servers(options)]
    workers = options.workers or os.cpu_count() or 1
    with progress("limit", "replays") as bar:
        find_limits(searches, local_processes(workers, workers), workers, bar.update)
    failed = [search.error for search in searches if search.error is not None]
    if failed and len(failed) == len(searches):
        raise UserError(failed[0])
    return {
        "trace": options.trace,
        "model": options.model,
        "num_prompts": load.num_requests,
        "rate_option": rate_option.replace("_", "-"),
        "precision": options.precision,
        "lowest_rate": grid.rate(-grid.most_steps),
        "highest_rate": grid.rate(grid.most_steps),
        "servers": [_server_facts(search) for search in searches],
    }


def _rate(options: LimitOptions) -> tuple[str, float]:
    """The option that is varied, and where to start. UserError: the rate is not open."""
    for name in ("max_concurrency", "concurrent_sessions"):
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise UserError(
                f"--{flag}: clients that wait for answers cannot overload a server; limit needs an open load"
            )
    if options.rate_scale != 1.0:
        raise UserError("--rate-scale: limit varies it itself")
    for name in ("request_rate", "session_rate"):
        if (rate := getattr(options, name)) is not None:
            if rate == float("inf"):
                raise UserError(f"--{name.replace('_', '-')}: expected a finite rate to start from")
            return name, rate
    return "rate_scale", 1.0


def _servers(options: LimitOptions) -> list[LimitOptions]:
    """The options for each memory fraction."""
    fractions = options.memory_fractions
    if fractions and options.server != "vllm":
        raise UserError("--memory-fractions: fractions of --gpu-memory-utilization, a flag of --server vllm")
    for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if fractions and getattr(options, name) is not None:
            raise UserError(f"--memory-fractions: has no effect with --{name.replace('_', '-')}")
    return [with_memory_share(options, fraction) for fraction in fractions or (memory_share(options),)]


def _criteria(options: LimitOptions) -> tuple[Criterion, ...]:
    """What must hold."""
    criteria = [Criterion("no preemption", "num_preemptions", 0)]
    if (within := options.hit_rate_within) is not None:
        name = f"hit rate within {100 * within:g} points of possible"
        criteria.append(Criterion(name, "prefix_cache_hit_rate", within, below="possible_hit_rate"))
    for level in options.goodput:
        for percent in options.metric_percentiles:
            name = percentile_name(percent)
            text = f"{name} {level.latency.upper()} at most {level.most_ms:g} ms"
            criteria.append(Criterion(text, f"{name}_{level.latency}_ms", level.most_ms))
    return tuple(criteria)


def _server_facts(search: Search) -> dict[str, Any]:
    """What was found for one memory fraction."""
    options = search.options
    has_fraction = options.num_gpu_blocks_override is None and options.kv_cache_memory_bytes is None
    facts: dict[str, Any] = {"memory_fraction": memory_share(options) if has_fraction else None}
    if search.error is not None:
        return facts | {"error": search.error}
    keys = list(dict.fromkeys(key for criterion in search.criteria for key in criterion.keys))
    rate = search.grid.rate
    limits = []
    for criteria in search.questions:
        bracket = search.bracket(criteria)
        limit: dict[str, Any] = {
            "criterion": criteria[0].name if len(criteria) == 1 else "all together",
            "highest_held": None if bracket.held is None else rate(bracket.held),
            "lowest_failed": None if bracket.failed is None else rate(bracket.failed),
            "contradictions": [rate(step) for step in search.contradictions(criteria)],
            "requests_per_s_at_held": None if bracket.held is None else _offered(search.replays[bracket.held]),
            "tokens_per_s_at_held": (
                None if bracket.held is None else search.replays[bracket.held]["total_token_throughput"]
            ),
        }
        if len(criteria) == 1:
            limit |= {"figure": criteria[0].key, "bound": criteria[0].bound, "below": criteria[0].below}
            for name, step in (("value_at_held", bracket.held), ("value_at_failed", bracket.failed)):
                limit[name] = None if step is None else criteria[0].value(search.replays[step])
        limits.append(limit)
    return facts | {
        "num_gpu_blocks": search.replays[0]["num_gpu_blocks"],
        "limits": limits,
        "replays": [{"rate": rate(step)} | {key: search.replays[step][key] for key in keys} for step in search.steps],
    }


def _offered(summary: dict[str, Any]) -> float | None:
    """Requests per second that arrived; None where all came together."""
    rate: float = summary["request_rate"]
    return None if rate == float("inf") else rate
