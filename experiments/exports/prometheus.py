"""A run as Prometheus text, as vLLM's ``/metrics`` would show it when the run has ended.

Names, labels and buckets are vLLM's. Left out is what is not simulated, and without the events of ``kvtwin replay
--events`` the inter-token latencies. ``vllm:iteration_tokens_total`` has the tokens that each step computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.exports.token_times import inter_token_latencies_ns
from kvtwin.experiments.records.event_file import has_events
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.runs.latencies import SERVED
from kvtwin.sim.recording import NEVER
from kvtwin.workloads.time_units import SECOND_NS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_PER_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_BLOCK_TIMES = {
    "kv_block_lifetime_seconds": "From when a block is handed out to when it is handed out again.",
    "kv_block_idle_before_evict_seconds": "The part of it since the last use.",
    "kv_block_reuse_gap_seconds": "Between hits of a block.",
}
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

_LABELS = ("engine", "model_name")

Values = NDArray[Any]
Labels = tuple[str, str]
"""Number of the engine, and the model."""


def export(run: Run, file: IO[str]) -> None:
    """Write the text. Replicas are told apart by the label ``engine``, as vLLM's ranks are."""
    from prometheus_client import generate_latest
    from prometheus_client.registry import Collector

    class Metrics(Collector):
        def collect(self) -> Iterator[Metric]:
            found: dict[str, Metric] = {}
            for engine, part in enumerate(run.replicas or [run]):
                labels = str(engine), str(part.configuration["model"])
                for metric in chain(_gauges(part, labels), _counters(part, labels), _histograms(part, labels)):
                    if metric.name in found:
                        found[metric.name].samples += metric.samples
                    else:
                        found[metric.name] = metric
            return iter(found.values())

    file.write(generate_latest(Metrics()).decode("utf-8"))


def _gauges(run: Run, labels: Labels) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    engine, options = run.configuration["engine"], run.configuration["options"]
    steps = run.steps
    has_steps = len(steps["free_blocks"]) > 0
    usage = 1 - steps["free_blocks"][-1] / (run.num_blocks - 1) if has_steps else 0.0
    running, waiting = (int(steps[name][-1]) if has_steps else 0 for name in ("running", "waiting"))
    for name, text, value in (
        ("num_requests_running", "Requests that run.", running),
        ("num_requests_waiting", "Requests that wait.", waiting),
        ("kv_cache_usage_perc", "Share of the cache in use, 1 is all.", usage),
    ):
        gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
        gauge.add_metric(labels, float(value))
        yield gauge
    info = {
        "block_size": engine["block_size"],
        "cache_dtype": options["kv_cache_dtype"],
        "enable_prefix_caching": engine["enable_prefix_caching"],
        "engine": labels[0],
        "gpu_memory_utilization": options["gpu_memory_utilization"],
        "num_gpu_blocks": engine["num_blocks"],
        "prefix_caching_hash_algo": engine["prefix_caching_hash_algo"],
    }
    gauge = GaugeMetricFamily("vllm:cache_config_info", "How the cache is set up.", labels=tuple(info))
    gauge.add_metric([str(value) for value in info.values()], 1)
    yield gauge


def _counters(run: Run, labels: Labels) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    summary, requests = run.summary, run.requests
    started = requests["first_token_ns"] != NEVER
    prompt_tokens = int(requests["prompt_tokens"][started].sum())
    counts: dict[str, tuple[str, int | None]] = {
        "prefix_cache_queries": ("Tokens looked up in the prefix cache.", summary["prefix_cache_queries"]),
        "prefix_cache_hits": ("Tokens found there.", summary["prefix_cache_hits"]),
        "external_prefix_cache_queries": (
            "Tokens looked up in the offload tier.",
            summary.get("external_prefix_cache_queries"),
        ),
        "external_prefix_cache_hits": ("Tokens found there.", summary.get("external_prefix_cache_hits")),
        "num_preemptions": ("Preemptions.", summary["num_preemptions"]),
        "prompt_tokens": ("Prompt tokens processed, cached or not.", prompt_tokens),
        "prompt_tokens_cached": ("Prompt tokens found in a cache.", int(requests["hit_tokens"][started].sum())),
        "generation_tokens": ("Output tokens.", int(requests["output_tokens"].sum())),
    }
    for name, (text, count) in counts.items():
        if count is not None:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric(labels, count)
            yield counter
    served = CounterMetricFamily(
        "vllm:request_success", "Requests served to their end.", labels=(*_LABELS, "finished_reason")
    )
    reasons, numbers = np.unique(requests["finish_reason"].astype(str), return_counts=True)
    for reason, number in zip(reasons.tolist(), numbers.tolist(), strict=True):
        if reason in SERVED:
            served.add_metric((*labels, reason), number)
    yield served


def _histograms(run: Run, labels: Labels) -> Iterator[Metric]:
    requests = run.requests
    served = np.isin(requests["finish_reason"], SERVED)
    rows = {name: column[served] for name, column in requests.items() if column.dtype.kind == "i"}
    arrival, scheduled, first, finish = (
        rows[name] / SECOND_NS for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns")
    )
    later_tokens = rows["output_tokens"] - 1
    lengths = _one_two_five(int(run.configuration["engine"]["max_model_len"]))
    tokens = run.steps["tokens"]
    found: list[tuple[str, str, Values, Sequence[float]]] = [
        ("time_to_first_token_seconds", "From arrival to the first token.", first - arrival, _TTFT_S),
        (
            "request_time_per_output_token_seconds",
            "Per further token; 0 for requests of one.",
            (finish - first) / np.maximum(later_tokens, 1),
            _PER_TOKEN_S,
        ),
        ("e2e_request_latency_seconds", "From arrival to the last token.", finish - arrival, _REQUEST_S),
        ("request_queue_time_seconds", "From arrival to the first admission.", scheduled - arrival, _REQUEST_S),
        ("request_prefill_time_seconds", "From admission to the first token.", first - scheduled, _REQUEST_S),
        ("request_decode_time_seconds", "From the first token to the last.", finish - first, _REQUEST_S),
        ("request_inference_time_seconds", "From admission to the last token.", finish - scheduled, _REQUEST_S),
        ("request_num_preemptions", "Preemptions per request.", rows["preemptions"], _PREEMPTIONS),
        ("request_prompt_tokens", "Prompt tokens per request.", rows["prompt_tokens"], lengths),
        ("request_generation_tokens", "Output tokens per request.", rows["output_tokens"], lengths),
        (
            "request_prefill_kv_computed_tokens",
            "Prompt tokens computed per request.",
            rows["prompt_tokens"] - rows["hit_tokens"],
            lengths,
        ),
        ("iteration_tokens_total", "Tokens computed per step.", tokens[tokens > 0], _STEP_TOKENS),
    ]
    if has_events(run.path):
        pauses_s = np.fromiter(chain.from_iterable(inter_token_latencies_ns(run)), dtype=np.int64) / SECOND_NS
        found.append(("inter_token_latency_seconds", "Between deliveries to a request.", pauses_s, _PER_TOKEN_S))
    for name, text, values, buckets in found:
        at_most = np.searchsorted(np.sort(values), buckets, side="right").tolist()
        counts = dict(zip((*map(str, buckets), "+Inf"), (*at_most, len(values)), strict=True))
        yield _histogram(name, text, labels, counts, float(values.sum()))
    for name, text in _BLOCK_TIMES.items():
        if measured := run.summary.get(name):
            counts = {
                bound if bound == "+Inf" else str(float(bound)): count for bound, count in measured["buckets"].items()
            }
            yield _histogram(name, text, labels, counts, measured["sum"])


def _histogram(name: str, text: str, labels: Labels, counts: dict[str, int], total: float) -> Metric:
    """From cumulative counts by upper bound."""
    from prometheus_client.core import HistogramMetricFamily

    histogram = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
    histogram.add_metric(labels, list(counts.items()), total)
    return histogram


def _one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20 and so on up to ``most``."""
    steps = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5))
    return [float(step) for step in steps if step <= most]
