"""A run as OpenMetrics text: vLLM's ``/metrics`` as a scraper would have seen it, sample after sample with its time.

Names, labels and buckets are vLLM's. Left out is what is not simulated. Without the events of ``kvtwin replay
--events`` there are no inter-token latencies, and output tokens have one sample, at the end, as everything has of which
the run does not tell the time. ``vllm:iteration_tokens_total`` has the tokens that each step computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING

import numpy as np

from kvtwin.experiments.exports.sampled import Moments, Values, counter, gauge, histogram
from kvtwin.experiments.exports.token_times import output_tokens_of_steps, pauses_between_deliveries
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

_NONE: Values = np.zeros(0, dtype=np.int64)


def export(run: Run, file: IO[str]) -> None:
    """Write the text. Replicas are told apart by the label ``engine``, as vLLM's ranks are."""
    from prometheus_client.openmetrics.exposition import ALLOWUTF8, generate_latest
    from prometheus_client.registry import Collector

    class Metrics(Collector):
        def collect(self) -> Iterator[Metric]:
            found: dict[str, Metric] = {}
            moments = Moments.of(run)
            for engine, part in enumerate(run.replicas or [run]):
                server = _Server(part, moments, {"engine": str(engine), "model_name": str(part.configuration["model"])})
                for metric in chain(server.gauges(), server.counters(), server.histograms()):
                    if metric.name in found:
                        found[metric.name].samples += metric.samples
                    else:
                        found[metric.name] = metric
            return iter(found.values())

    file.write(generate_latest(Metrics(), escaping=ALLOWUTF8).decode("utf-8"))


@dataclass(frozen=True)
class _Server:
    """A run of one server, its moments, and the labels of its series."""

    run: Run
    moments: Moments
    labels: dict[str, str]

    def gauges(self) -> Iterator[Metric]:
        engine, options = self.run.configuration["engine"], self.run.configuration["options"]
        steps = self.run.steps
        usage = 1 - steps["free_blocks"] / (self.run.num_blocks - 1)
        for name, text, values in (
            ("num_requests_running", "Requests that run.", steps["running"]),
            ("num_requests_waiting", "Requests that wait.", steps["waiting"]),
            ("kv_cache_usage_perc", "Share of the cache in use, 1 is all.", usage),
        ):
            yield gauge(self.moments, name, text, self.labels, self.moments.latest(steps["scheduled_ns"], values))
        info = {
            "block_size": engine["block_size"],
            "cache_dtype": options["kv_cache_dtype"],
            "enable_prefix_caching": engine["enable_prefix_caching"],
            "engine": self.labels["engine"],
            "gpu_memory_utilization": options["gpu_memory_utilization"],
            "num_gpu_blocks": engine["num_blocks"],
            "prefix_caching_hash_algo": engine["prefix_caching_hash_algo"],
        }
        texts = {name: str(value) for name, value in info.items()}
        yield gauge(self.moments, "cache_config_info", "How the cache is set up.", texts, [1.0] * self.moments.count)

    def counters(self) -> Iterator[Metric]:
        summary, requests, steps = self.run.summary, self.run.requests, self.run.steps
        admitted, started = (requests[name] != NEVER for name in ("first_scheduled_ns", "first_token_ns"))
        prompts, hits = requests["prompt_tokens"], requests["hit_tokens"]
        at_ns = requests["first_scheduled_ns"][admitted]
        yield from self._counter(
            "prefix_cache_queries", "Tokens looked up.", summary["prefix_cache_queries"], at_ns, prompts[admitted]
        )
        yield from self._counter(
            "prefix_cache_hits", "Tokens found.", summary["prefix_cache_hits"], at_ns, hits[admitted]
        )
        for name in ("external_prefix_cache_queries", "external_prefix_cache_hits"):
            yield from self._counter(name, "The same of the offload tier.", summary.get(name))
        yield from self._counter(
            "num_preemptions", "Preemptions.", summary["num_preemptions"], steps["scheduled_ns"], steps["preempted"]
        )
        at_ns = requests["first_token_ns"][started]
        for name, text, tokens in (
            ("prompt_tokens", "Prompt tokens processed, cached or not.", prompts[started]),
            ("prompt_tokens_cached", "Prompt tokens found in a cache.", hits[started]),
        ):
            yield from self._counter(name, text, tokens.sum(), at_ns, tokens)
        generated = requests["output_tokens"].sum()
        if has_events(self.run.path):
            outputs = output_tokens_of_steps(self.run)
            yield from self._counter("generation_tokens", "Output tokens.", generated, steps["end_ns"], outputs)
        else:
            yield from self._counter("generation_tokens", "Output tokens.", generated)
        yield from self._served()

    def _counter(
        self, name: str, text: str, total: float | None, at_ns: Values = _NONE, amounts: Values = _NONE
    ) -> Iterator[Metric]:
        """Over time if all of ``total`` came as ``amounts``; else as it was in the end."""
        if total is not None:
            values = self.moments.sums(at_ns, amounts)
            yield counter(self.moments, name, text, self.labels, values if values[-1] == total else [float(total)])

    def _served(self) -> Iterator[Metric]:
        requests = self.run.requests
        reasons = requests["finish_reason"].astype(str)
        made: Metric | None = None
        for reason in [reason for reason in SERVED if (reasons == reason).any()]:
            ends = np.sort(requests["finish_ns"][reasons == reason])
            values = self.moments.sums(ends, np.ones(len(ends), dtype=np.int64))
            labels = self.labels | {"finished_reason": reason}
            one = counter(self.moments, "request_success", "Requests served to their end.", labels, values)
            if made is None:
                made = one
            else:
                made.samples += one.samples
        if made is not None:
            yield made

    def histograms(self) -> Iterator[Metric]:
        requests, steps = self.run.requests, self.run.steps
        served = np.isin(requests["finish_reason"], SERVED)
        rows = {name: column[served] for name, column in requests.items() if column.dtype.kind == "i"}
        at_first_ns, at_end_ns = rows["first_token_ns"], rows["finish_ns"]
        arrival, scheduled, first, finish = (
            rows[name] / SECOND_NS for name in ("arrival_ns", "first_scheduled_ns", "first_token_ns", "finish_ns")
        )
        per_token = (finish - first) / np.maximum(rows["output_tokens"] - 1, 1)
        lengths = _one_two_five(int(self.run.configuration["engine"]["max_model_len"]))
        text = "From arrival to the first token."
        yield from self._histogram("time_to_first_token_seconds", text, at_first_ns, first - arrival, _TTFT_S)
        text = "Per further token; 0 for requests of one."
        yield from self._histogram("request_time_per_output_token_seconds", text, at_end_ns, per_token, _PER_TOKEN_S)
        for name, text, values in (
            ("e2e_request_latency_seconds", "From arrival to the last token.", finish - arrival),
            ("request_queue_time_seconds", "From arrival to the first admission.", scheduled - arrival),
            ("request_prefill_time_seconds", "From admission to the first token.", first - scheduled),
            ("request_decode_time_seconds", "From the first token to the last.", finish - first),
            ("request_inference_time_seconds", "From admission to the last token.", finish - scheduled),
        ):
            yield from self._histogram(name, text, at_end_ns, values, _REQUEST_S)
        for name, text, values in (
            ("request_prompt_tokens", "Prompt tokens per request.", rows["prompt_tokens"]),
            ("request_generation_tokens", "Output tokens per request.", rows["output_tokens"]),
            (
                "request_prefill_kv_computed_tokens",
                "Prompt tokens computed per request.",
                rows["prompt_tokens"] - rows["hit_tokens"],
            ),
        ):
            yield from self._histogram(name, text, at_end_ns, values, lengths)
        text = "Preemptions per request."
        yield from self._histogram("request_num_preemptions", text, at_end_ns, rows["preemptions"], _PREEMPTIONS)
        some = steps["tokens"] > 0
        at_ns, tokens, text = steps["end_ns"][some], steps["tokens"][some], "Tokens computed per step."
        yield from self._histogram("iteration_tokens_total", text, at_ns, tokens, _STEP_TOKENS)
        if has_events(self.run.path):
            at_ns, pauses_ns = pauses_between_deliveries(self.run)
            text = "Between deliveries to a request."
            yield from self._histogram("inter_token_latency_seconds", text, at_ns, pauses_ns / SECOND_NS, _PER_TOKEN_S)
        yield from self._block_times()

    def _block_times(self) -> Iterator[Metric]:
        for name, text in _BLOCK_TIMES.items():
            if measured := self.run.summary.get(name):
                counts = {
                    bound if bound == "+Inf" else str(float(bound)): count
                    for bound, count in measured["buckets"].items()
                }
                yield from histogram(self.moments, name, text, self.labels, [(counts, measured["sum"])])

    def _histogram(
        self, name: str, text: str, at_ns: Values, values: Values, bounds: Sequence[float]
    ) -> Iterator[Metric]:
        """Of values that come at ``at_ns``."""
        names = [*map(str, bounds), "+Inf"]
        counts = self.moments.bucket_counts(at_ns, values, bounds).tolist()
        rows = [dict(zip(names, row, strict=True)) for row in counts]
        sums = self.moments.sums(at_ns, values)
        yield from histogram(self.moments, name, text, self.labels, list(zip(rows, sums, strict=True)))


def _one_two_five(most: int) -> list[float]:
    """1, 2, 5, 10, 20 and so on up to ``most``."""
    steps = (digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5))
    return [float(step) for step in steps if step <= most]
