"""Latencies of the served requests, as ``vllm bench serve`` defines and sums them up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.recording import Recorder

LATENCIES = ("ttft", "tpot", "itl", "e2el")
MILLISECOND_NS = 1_000_000
SERVED = ("stop", "length")
"""Why a request ended that was served."""


class Latencies:
    """Latencies of the served requests in nanoseconds, and their statistics in milliseconds."""

    def __init__(self, recorder: Recorder) -> None:
        columns = recorder.requests
        served = served_rows(recorder)
        arrival, first, finish, outputs = (
            as_array(column)[served]
            for column in (columns.arrival_ns, columns.first_token_ns, columns.finish_ns, columns.output_tokens)
        )
        self.ttft = first - arrival
        self.e2el = finish - arrival
        self._several = outputs > 1
        self.tpot = np.zeros(len(outputs))
        """0 for requests of one output token, as vLLM has it for goodput."""
        self.tpot[self._several] = (finish - first)[self._several] / (outputs[self._several] - 1)
        self._itl = recorder.inter_token_latencies_ns

    def statistics(self, percentiles: tuple[float, ...]) -> dict[str, float]:
        """``mean_ttft_ms`` and so on; TPOT leaves out requests of one token, as vLLM does."""
        multisets = {
            "ttft": _Multiset.of(self.ttft),
            "tpot": _Multiset.of(self.tpot[self._several]),
            "itl": _Multiset.of_counts(self._itl),
            "e2el": _Multiset.of(self.e2el),
        }
        found: dict[str, float] = {}
        for name, values in multisets.items():
            found |= _statistics(name, values, percentiles)
        return found

    def num_good(self, goodput_ms: tuple[tuple[str, float], ...]) -> int:
        """Requests that keep every service level."""
        good = np.ones(len(self.ttft), dtype=bool)
        for name, limit_ms in goodput_ms:
            good &= getattr(self, name) <= limit_ms * MILLISECOND_NS
        return int(good.sum())


def served_rows(recorder: Recorder) -> NDArray[np.bool_]:
    """Which of the recorded requests were served to their end."""
    return np.isin(np.asarray(recorder.requests.finish_reason, dtype=str), SERVED)


def as_array(column: Any) -> NDArray[np.int64]:
    """A recorder's column of integers, not copied."""
    return np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)


def percentile_name(percent: float) -> str:
    """``p99`` or ``p99.9``, as vLLM writes it."""
    return f"p{int(percent) if percent == int(percent) else percent}"


class _Multiset:
    """Numbers as sorted distinct values with counts: inter-token latencies are many, and few of them distinct."""

    def __init__(self, values: NDArray[Any], counts: NDArray[Any]) -> None:
        self._values = values
        self._counts = counts
        self._ends = np.cumsum(counts)

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Multiset:
        return cls(*np.unique(values, return_counts=True))

    @classmethod
    def of_counts(cls, counts: Counter[int]) -> _Multiset:
        values = sorted(counts)
        return cls(np.array(values, dtype=np.int64), np.array([counts[value] for value in values], dtype=np.int64))

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def mean(self) -> float:
        return float(np.dot(self._values.astype(float), self._counts) / len(self))

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


def _statistics(name: str, values: _Multiset, percentiles: tuple[float, ...]) -> dict[str, float]:
    names = [f"mean_{name}_ms", f"median_{name}_ms", f"std_{name}_ms"]
    names += [f"{percentile_name(percent)}_{name}_ms" for percent in percentiles]
    if not len(values):
        return dict.fromkeys(names, 0.0)
    found = [values.mean(), values.percentile(50), values.deviation()]
    found += [values.percentile(percent) for percent in percentiles]
    return dict(zip(names, [value / MILLISECOND_NS for value in found], strict=True))
