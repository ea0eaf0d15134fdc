"""What a server's metrics were at regular moments of a run, as a scraper would have seen them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.records.reader import Run
from kvtwin.workloads.time_units import SECOND_NS

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_INTERVALS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)
_MOST_SAMPLES = 300
"""Of a series: a run has hundreds of series, and every sample is a line."""

Values = NDArray[Any]


@dataclass(frozen=True)
class Moments:
    """When to look: every so many seconds from the start to past the end."""

    interval_s: int
    count: int
    start_s: int
    """The time of day at which the run's time is 0, in s since 1970."""

    @classmethod
    def of(cls, run: Run) -> Moments:
        """As many as a file has room for. Time 0 is when kvtwin replayed the run."""
        ends = [int(part.steps["end_ns"].max(initial=0)) for part in run.replicas or [run]]
        ends += [int(part.requests["finish_ns"].max(initial=0)) for part in run.replicas or [run]]
        end_s = -(-max(ends) // SECOND_NS)
        interval_s = next((each for each in _INTERVALS_S if end_s <= each * _MOST_SAMPLES), _INTERVALS_S[-1])
        date = run.machine.get("date")
        start = datetime.strptime(date, "%Y%m%d-%H%M%S").replace(tzinfo=UTC) if date else None
        return cls(interval_s, -(-end_s // interval_s) + 1, int(start.timestamp()) if start else 0)

    @property
    def times_ns(self) -> Values:
        """Of the run."""
        return np.arange(self.count, dtype=np.int64) * self.interval_s * SECOND_NS

    @property
    def timestamps(self) -> list[int]:
        """Of the file."""
        return (self.start_s + np.arange(self.count) * self.interval_s).tolist()

    def latest(self, at_ns: Values, values: Values) -> list[float]:
        """Of values that hold from ``at_ns`` on, those that hold at each moment; 0 before the first."""
        places = np.searchsorted(at_ns, self.times_ns, side="right")
        return np.append(0, values)[places].astype(float).tolist()

    def sums(self, at_ns: Values, amounts: Values) -> list[float]:
        """What has come together by each moment, if ``amounts`` come at ``at_ns``."""
        order = np.argsort(at_ns, kind="stable")
        return self.latest(at_ns[order], np.cumsum(amounts[order]))

    def bucket_counts(self, at_ns: Values, values: Values, bounds: Sequence[float]) -> Values:
        """A row per moment: how many of the values so far are at most each bound, and how many there are."""
        counts = np.zeros((self.count + 1, len(bounds) + 1), dtype=np.int64)
        since = np.searchsorted(self.times_ns, at_ns, side="left")
        np.add.at(counts, (since, np.searchsorted(bounds, values, side="left")), 1)
        return counts.cumsum(axis=0).cumsum(axis=1)[: self.count]


def gauge(moments: Moments, name: str, text: str, labels: dict[str, str], values: list[float]) -> Metric:
    """A value that comes and goes."""
    from prometheus_client.core import GaugeMetricFamily

    made = GaugeMetricFamily(f"vllm:{name}", text, labels=tuple(labels))
    for timestamp, value in zip(moments.timestamps, values, strict=True):
        made.add_metric(tuple(labels.values()), value, timestamp=timestamp)
    return made


def counter(moments: Moments, name: str, text: str, labels: dict[str, str], values: list[float]) -> Metric:
    """A count; of fewer ``values`` than moments the last ones are known."""
    from prometheus_client.core import CounterMetricFamily

    made = CounterMetricFamily(f"vllm:{name}", text, labels=tuple(labels))
    for timestamp, value in zip(moments.timestamps[-len(values) :], values, strict=True):
        made.add_metric(tuple(labels.values()), value, timestamp=timestamp)
    return made


def histogram(
    moments: Moments, name: str, text: str, labels: dict[str, str], rows: list[tuple[dict[str, int], float]]
) -> Iterator[Metric]:
    """Cumulative counts by upper bound, and the sum; of fewer ``rows`` than moments the last ones are known.

    They are written as the series that a database makes of a histogram, of unknown type: of a histogram with several
    times the parser of prometheus_client reads the first only.
    """
    from prometheus_client.core import UntypedMetricFamily

    timestamps = moments.timestamps[-len(rows) :]
    buckets = UntypedMetricFamily(f"vllm:{name}_bucket", text, labels=(*labels, "le"))
    for bound in rows[0][0]:
        for timestamp, (counts, _) in zip(timestamps, rows, strict=True):
            buckets.add_metric((*labels.values(), bound), counts[bound], timestamp=timestamp)
    yield buckets
    for suffix, values in (
        ("count", [float(counts["+Inf"]) for counts, _ in rows]),
        ("sum", [total for _, total in rows]),
    ):
        family = UntypedMetricFamily(f"vllm:{name}_{suffix}", text, labels=tuple(labels))
        for timestamp, value in zip(timestamps, values, strict=True):
            family.add_metric(tuple(labels.values()), value, timestamp=timestamp)
        yield family
