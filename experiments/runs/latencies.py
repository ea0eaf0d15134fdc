"""Latencies of the served requests, as ``vllm bench serve`` defines and sums them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.options.output import ServiceLevel
from kvtwin.sim.recording import Recorder
from kvtwin.workloads.multiset import Multiset
from kvtwin.workloads.time_units import MILLISECOND_NS

SERVED = ("stop", "length")
"""Why a request ended that was served."""


class Latencies:
    """Latencies of the served requests in nanoseconds, and their statistics in milliseconds.

    A client that asks for several samples of a prompt waits for one request: its TTFT is that of the first token of any
    sample, its end-to-end latency that of the last. TPOT and inter-token latencies are those of each sample.
    """

    def __init__(self, recorder: Recorder) -> None:
        columns = recorder.requests
        served = served_rows(recorder)
        arrival, first, finish, outputs = (
            as_array(column)[served]
            for column in (columns.arrival_ns, columns.first_token_ns, columns.finish_ns, columns.output_tokens)
        )
        _, rows, self._record_of_row = np.unique(
            as_array(columns.record_index)[served], return_index=True, return_inverse=True
        )
        earliest, latest = first[rows], finish[rows]
        np.minimum.at(earliest, self._record_of_row, first)
        np.maximum.at(latest, self._record_of_row, finish)
        self.ttft = earliest - arrival[rows]
        self.e2el = latest - arrival[rows]
        self._several = outputs > 1
        self.tpot = np.zeros(len(outputs))
        """0 for requests of one output token, as vLLM has it for goodput."""
        self.tpot[self._several] = (finish - first)[self._several] / (outputs[self._several] - 1)
        self._itl = recorder.inter_token_latencies_ns

    def statistics(self, percentiles: tuple[float, ...]) -> dict[str, float]:
        """``mean_ttft_ms`` and so on; TPOT leaves out requests of one token, as vLLM does."""
        multisets = {
            "ttft": Multiset(Counter(self.ttft.tolist())),
            "tpot": Multiset(Counter(self.tpot[self._several].tolist())),
            "itl": Multiset(self._itl),
            "e2el": Multiset(Counter(self.e2el.tolist())),
        }
        found: dict[str, float] = {}
        for name, values in multisets.items():
            found |= _statistics(name, values, percentiles)
        return found

    def num_good(self, levels: Iterable[ServiceLevel]) -> int:
        """Requests that meet every service level."""
        worst_tpot = np.zeros(len(self.ttft))
        np.maximum.at(worst_tpot, self._record_of_row, self.tpot)
        latencies = {"ttft": self.ttft, "tpot": worst_tpot, "e2el": self.e2el}
        good = np.ones(len(self.ttft), dtype=bool)
        for level in levels:
            good &= latencies[level.latency] <= level.most_ms * MILLISECOND_NS
        return int(good.sum())


def served_rows(recorder: Recorder) -> NDArray[np.bool_]:
    """Which of the recorded requests were served to their end, and all other samples of their prompt with them."""
    served = np.isin(np.asarray(recorder.requests.finish_reason, dtype=str), SERVED)
    if recorder.incomplete_records:
        served &= ~np.isin(as_array(recorder.requests.record_index), list(recorder.incomplete_records))
    return served


def as_array(column: Any) -> NDArray[np.int64]:
    """A recorder's column of integers, not copied."""
    return np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)


def percentile_name(percent: float) -> str:
    """``p99`` or ``p99.9``, as vLLM writes it."""
    return f"p{int(percent) if percent == int(percent) else percent}"


def _statistics(name: str, values: Multiset, percentiles: tuple[float, ...]) -> dict[str, float]:
    names = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms"]
    names += [f"{percentile_name(percent)}_{name}_ms" for percent in percentiles]
    if not len(values):
        return dict.fromkeys(names, 0.0)
    found = [values.mean(), values.percentile(50), values.deviation()]
    found += [values.percentile(percent) for percent in percentiles]
    return dict(zip(names, [value / MILLISECOND_NS for value in found], strict=True))
