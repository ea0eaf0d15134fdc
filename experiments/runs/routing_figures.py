"""What a router did, in figures: how evenly it spread the load, and what it missed in the caches of other replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.engine.config import EngineConfig
from kvtwin.experiments.runs.latencies import as_array
from kvtwin.sim.cluster.recording import ClusterRecorder
from kvtwin.sim.recording import NEVER
from kvtwin.workloads.prefixes.chains import Chain
from kvtwin.workloads.prefixes.lru_stack import LruStack
from kvtwin.workloads.request_record import RequestRecord

OF_REPLICA = (
    "num_prompts",
    "completed",
    "rejected",
    "total_input_tokens",
    "total_output_tokens",
    "num_gpu_blocks",
    "scheduled_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prefix_cache_hit_rate",
    "possible_hit_rate",
    "num_evictions",
    "num_preemptions",
    "kv_cache_usage_mean",
    "kv_cache_usage_peak",
    "max_running_requests",
    "max_waiting_requests",
    "device_busy_s",
    "mean_ttft_ms",
    "mean_tpot_ms",
)
"""What the summary repeats of each replica's own."""

NUM_INTERVALS = 100
"""Into how many equal parts a run is cut, to see the load of the replicas over time."""


class OneCache:
    """The hits of one cache as large as those of all replicas together, which sees the requests one by one."""

    def __init__(self, configs: Sequence[EngineConfig]) -> None:
        config = configs[0]
        self.is_known = (
            config.enable_prefix_caching
            and all([spec.kind for spec in each.group_specs] == ["full_attention"] for each in configs)
            and len({each.block_size for each in configs}) == 1
        )
        self._block_size = config.block_size
        self._num_blocks = sum(each.num_blocks - 1 for each in configs)
        self._stack = LruStack()
        self._hit_tokens = self._prompt_tokens = 0

    def add(self, record: RequestRecord, chain: Chain) -> None:
        """The next request that is sent, and its chain, which names equal prefixes of all requests alike."""
        num_hit_blocks = 0
        for _, num_blocks, distance in self._stack.touch(chain):
            within = min(num_blocks, self._num_blocks - distance + 1)
            num_hit_blocks += max(0, within)
            if within < num_blocks:
                break
        self._hit_tokens += min(num_hit_blocks, chain.max_hit_blocks) * self._block_size
        self._prompt_tokens += record.prompt_tokens

    def figures(self) -> dict[str, Any]:
        """The bound, as a share of the prompt tokens; None where several kinds of blocks share the memory."""
        share = self._hit_tokens / self._prompt_tokens if self._prompt_tokens else 0.0
        return {"one_cache_hit_rate": share if self.is_known else None}


def routing_figures(recorder: ClusterRecorder, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The keys that a summary of several replicas has besides; ``parts`` are the replicas' own summaries."""
    rows = recorder.requests
    here, most = as_array(recorder.routing.cached_tokens), as_array(recorder.routing.most_cached_tokens)
    admitted = as_array(rows.first_scheduled_ns) != NEVER
    missed_elsewhere = (as_array(rows.most_cached_tokens) - as_array(rows.hit_tokens))[admitted]
    load, tokens = load_over_time(recorder)
    return {
        "data_parallel_size": len(parts),
        "overlap_regret_tokens": int((most - here).sum()),
        "misrouted_tokens": int(np.maximum(missed_elsewhere, 0).sum()),
        "load_imbalance": _imbalance(load),
        "token_imbalance": _imbalance(tokens),
        "token_imbalance_overall": _ratio(np.array([part["scheduled_tokens"] for part in parts], dtype=float)),
        "replicas": [{name: part[name] for name in OF_REPLICA} for part in parts],
    }


def load_over_time(recorder: ClusterRecorder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each replica in each of NUM_INTERVALS equal intervals: its mean number of requests, and tokens computed.

    Both are of shape (replicas, intervals); a step's tokens count where it starts.
    """
    rows, steps, count = recorder.requests, recorder.steps, len(recorder.replicas)
    arrival, finish, replica = (as_array(column) for column in (rows.arrival_ns, rows.finish_ns, rows.replica))
    if not len(arrival) or finish.max() == arrival.min():
        return np.zeros((count, 1)), np.zeros((count, 1))
    bounds = np.linspace(arrival.min(), finish.max(), NUM_INTERVALS + 1)
    load, tokens = np.zeros((count, NUM_INTERVALS)), np.zeros((count, NUM_INTERVALS))
    start_ns, step_tokens, of_step = (as_array(column) for column in (steps.start_ns, steps.tokens, steps.replica))
    for number in range(count):
        mine = replica == number
        present = _time_before(bounds, arrival[mine]) - _time_before(bounds, finish[mine])
        load[number] = np.diff(present) / np.diff(bounds)
        tokens[number], _ = np.histogram(
            start_ns[of_step == number], bounds, weights=step_tokens[of_step == number].astype(float)
        )
    return load, tokens


def _time_before(bounds: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each bound, the time since all earlier ``times``, added up."""
    ordered = np.sort(times).astype(float)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    counts = np.searchsorted(ordered, bounds)
    return counts * bounds - sums[counts]


def _imbalance(values: NDArray[np.float64]) -> float | None:
    """The greatest over the mean, averaged over the intervals in which there is something; None without any."""
    ratios = [_ratio(column) for column in values.T if column.sum() > 0]
    return float(np.mean([ratio for ratio in ratios if ratio is not None])) if ratios else None


def _ratio(values: NDArray[np.float64]) -> float | None:
    return float(values.max() / values.mean()) if values.sum() > 0 else None
