"""The figures of a run: those of ``vllm bench serve``, and what the KV cache did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.config import VLLM_VERSION, EngineConfig
from sim.recording import NEVER, SECOND_NS, Recorder

LATENCIES = ("ttft", "tpot", "itl", "e2el")
MILLISECOND_NS = 1_000_000
SERVED = ("stop", "length")


@dataclass(frozen=True)
class RunContext:
    """What a run was asked for, as far as its summary repeats it."""

    model: str
    num_prompts: int
    request_rate: float
    burstiness: float
    max_concurrency: int | None
    percentiles: tuple[float, ...] = (99.0,)
    goodput_ms: tuple[tuple[str, float], ...] = ()
    """Service levels: (latency name, most milliseconds)."""


class Latencies:
    """Latencies of the served requests in nanoseconds, and their statistics in milliseconds."""

    def __init__(self, recorder: Recorder) -> None:
        columns = recorder.requests
        served = np.isin(np.asarray(columns.finish_reason, dtype=str), SERVED)
        arrival = _array(columns.arrival_ns)[served]
        first = _array(columns.first_token_ns)[served]
        finish = _array(columns.finish_ns)[served]
        outputs = _array(columns.output_tokens)[served]
        self.ttft = first - arrival
        self.e2el = finish - arrival
        self.several = outputs > 1
        self.tpot = np.zeros(len(outputs))
        self.tpot[self.several] = (finish - first)[self.several] / (outputs[self.several] - 1)
        self.itl = recorder.inter_token_latencies_ns

    def statistics(self, percentiles: tuple[float, ...]) -> dict[str, float]:
        """``mean_ttft_ms`` and so on; TPOT leaves out requests of one token, as vLLM does."""
        found: dict[str, float] = {}
        for name, values in (("ttft", self.ttft), ("tpot", self.tpot[self.several]), ("e2el", self.e2el)):
            found |= _statistics(name, _Sorted.of(values), percentiles)
        return found | _statistics("itl", _Sorted.of_counts(self.itl), percentiles)

    def num_good(self, goodput_ms: tuple[tuple[str, float], ...]) -> int:
        """Requests that keep every service level."""
        good = np.ones(len(self.ttft), dtype=bool)
        for name, limit_ms in goodput_ms:
            good &= getattr(self, name) <= limit_ms * MILLISECOND_NS
        return int(good.sum())


class _Sorted:
    """A multiset of numbers as sorted distinct values with counts."""

    def __init__(self, values: NDArray[Any], counts: NDArray[Any]) -> None:
        self._values = values
        self._ends = np.cumsum(counts)
        self._counts = counts

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Sorted:
        return cls(*np.unique(values, return_counts=True))

    @classmethod
    def of_counts(cls, counts: Counter[int]) -> _Sorted:
        values = sorted(counts)
        return cls(np.array(values, dtype=np.int64), np.array([counts[value] for value in values], dtype=np.int64))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def mean(self) -> float:
        return float(np.dot(self._values, self._counts) / len(self))

    def deviation(self) -> float:
        return float(np.sqrt(np.dot((self._values - self.mean()) ** 2, self._counts) / len(self)))

    def percentile(self, percent: float) -> float:
        """Linear between ranks, as numpy.percentile."""
        rank = (len(self) - 1) * percent / 100
        low = int(rank)
        below, above = self._at(low), self._at(min(low + 1, len(self) - 1))
        return float(below + (above - below) * (rank - low))

    def _at(self, rank: int) -> Any:
        return self._values[np.searchsorted(self._ends, rank, side="right")]


def _statistics(name: str, values: _Sorted, percentiles: tuple[float, ...]) -> dict[str, float]:
    names = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms"]
    names += [f"p{percent:g}_{name}_ms" for percent in percentiles]
    if not len(values):
        return dict.fromkeys(names, 0.0)
    found = [values.mean(), values.percentile(50), values.deviation()]
    found += [values.percentile(percent) for percent in percentiles]
    return dict(zip(names, [value / MILLISECOND_NS for value in found], strict=True))


def summarise(recorder: Recorder, config: EngineConfig, context: RunContext) -> dict[str, Any]:
    """All figures of a run as plain data. Token and block counts are ints, times seconds or milliseconds."""
    columns = recorder.requests
    reasons = Counter(columns.finish_reason)
    served = np.isin(np.asarray(columns.finish_reason, dtype=str), SERVED)
    completed = int(served.sum())
    input_tokens = int(_array(columns.prompt_tokens)[served].sum())
    output_tokens = int(_array(columns.output_tokens)[served].sum())
    first_ns, last_ns = _span(recorder)
    duration_s = (last_ns - first_ns) / SECOND_NS
    latencies = Latencies(recorder)
    refused = dict(recorder.refused)
    for reason, name in (("rejected", "never fits"), ("capacity", "outgrew the pool")):
        if reasons[reason]:
            refused[name] = reasons[reason]
    good = latencies.num_good(context.goodput_ms) if context.goodput_ms else None
    bench = {
        "endpoint_type": "kvtwin",
        "backend": "kvtwin",
        "label": None,
        "model_id": context.model,
        "tokenizer_id": context.model,
        "vllm_version": VLLM_VERSION,
        "num_prompts": context.num_prompts,
        "request_rate": "inf" if context.request_rate == float("inf") else context.request_rate,
        "burstiness": context.burstiness,
        "max_concurrency": context.max_concurrency,
        "duration": duration_s,
        "completed": completed,
        "failed": sum(refused.values()) + len(recorder.unfinished),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": _per_second(completed, duration_s),
        "request_goodput": None if good is None else _per_second(good, duration_s),
        "output_throughput": _per_second(output_tokens, duration_s),
        "total_token_throughput": _per_second(input_tokens + output_tokens, duration_s),
        "max_output_tokens_per_s": max(recorder.output_tokens_per_s.values(), default=0),
        "max_concurrent_requests": recorder.peak_requests,
        "rtfx": 0.0,
    }
    return bench | latencies.statistics(context.percentiles) | _cache_figures(recorder, config, refused)


def _cache_figures(recorder: Recorder, config: EngineConfig, refused: dict[str, int]) -> dict[str, Any]:
    statistics = recorder.scheduler.statistics
    counts = statistics.prefix_cache
    columns = recorder.requests
    num_admitted = int((_array(columns.first_scheduled_ns) != NEVER).sum())
    known = _prefix_is_known(recorder)
    full_blocks = int((_array(columns.prompt_tokens) // config.block_size).sum())
    hits = counts.hits if known else None
    return {
        "num_gpu_blocks": config.num_blocks,
        "block_size": config.block_size,
        "steps": statistics.num_steps,
        "prefix_cache_queries": counts.queries,
        "prefix_cache_hits": hits,
        "prefix_cache_hit_rate": _share(hits, counts.queries),
        "prefix_cache_hit_rate_last_1000_requests": statistics.recent_hit_rate.rate if known else None,
        "prefix_cache_block_hit_rate": _share(None if hits is None else hits // config.block_size, full_blocks),
        "prompt_full_blocks": full_blocks,
        "requests_with_hit": counts.requests_with_hit if known else None,
        "request_hit_rate": _share(counts.requests_with_hit if known else None, num_admitted),
        "preempted_prefix_cache_requests": counts.preempted_requests,
        "preempted_prefix_cache_queries": counts.preempted_queries,
        "preempted_prefix_cache_hits": counts.preempted_hits,
        "num_requests_unknown_prefix": recorder.num_requests_unknown_prefix,
        "num_preemptions": statistics.num_preemptions,
        "num_requests_preempted": int((_array(columns.preemptions) > 0).sum()),
        "num_evictions": recorder.scheduler.kv_cache.pool.num_evictions,
        "scheduled_tokens": statistics.num_scheduled_tokens,
        "recomputed_tokens": statistics.num_recomputed_tokens,
        "phantom_hit_tokens": statistics.phantom_hit_tokens,
        "rejected": sum(refused.values()),
        "rejected_by_reason": refused,
        "unfinished": len(recorder.unfinished),
        "kv_cache_usage_peak": _peak_usage(recorder, config),
        "kv_cache_usage_mean": _mean_usage(recorder, config),
        "max_running_requests": max(recorder.steps.running, default=0),
        "max_waiting_requests": max(recorder.steps.waiting, default=0),
        "device_busy_s": int((_array(recorder.steps.end_ns) - _array(recorder.steps.start_ns)).sum()) / SECOND_NS,
    }


def _prefix_is_known(recorder: Recorder) -> bool:
    """Whether anything can be said about hits: not when every prompt is known by its length only."""
    num_requests = len(recorder.requests.request_id)
    return recorder.num_requests_unknown_prefix < max(1, num_requests)


def _peak_usage(recorder: Recorder, config: EngineConfig) -> float:
    return 1 - min(recorder.steps.free_blocks, default=config.num_blocks - 1) / (config.num_blocks - 1)


def _mean_usage(recorder: Recorder, config: EngineConfig) -> float:
    """Share of blocks held, averaged over the time of the steps (over the steps, if they take none)."""
    steps = recorder.steps
    if not len(steps.free_blocks):
        return 0.0
    used = 1 - _array(steps.free_blocks) / (config.num_blocks - 1)
    weights = _array(steps.end_ns) - _array(steps.start_ns)
    return float(np.average(used, weights=weights if weights.any() else None))


def _span(recorder: Recorder) -> tuple[int, int]:
    """First arrival and last completion."""
    arrivals, finishes = recorder.requests.arrival_ns, recorder.requests.finish_ns
    return (min(arrivals), max(finishes)) if len(arrivals) else (0, 0)


def _array(column: Any) -> NDArray[np.int64]:
    return np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)


def _per_second(count: int, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0


def _share(part: int | None, whole: int) -> float | None:
    if part is None:
        return None
    return part / whole if whole else 0.0
