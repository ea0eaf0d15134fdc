"""What a run of several replicas leaves behind: the rows and sums of all, and where each request was sent."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from kvtwin.engine.statistics import EngineStatistics
from kvtwin.sim.counting import add_counts
from kvtwin.sim.recording import Recorder, RequestColumns, StepColumns, integers

_Columns = TypeVar("_Columns", RequestColumns, StepColumns)


@dataclass
class RoutedRequestColumns(RequestColumns):
    """One row per request that reached an engine, in order of completion."""

    replica: array[int] = field(default_factory=integers)
    """The replica that served it, from 0 on."""
    cached_tokens: array[int] = field(default_factory=integers)
    """Prompt tokens that this replica had cached when the request was sent."""
    most_cached_tokens: array[int] = field(default_factory=integers)
    """The most that any replica had."""


@dataclass
class ReplicaStepColumns(StepColumns):
    """One row per step of any replica, in the order in which they were scheduled."""

    replica: array[int] = field(default_factory=integers)


@dataclass
class Routing:
    """One row per record, in the order in which they were sent."""

    replica: array[int] = field(default_factory=integers)
    cached_tokens: array[int] = field(default_factory=integers)
    most_cached_tokens: array[int] = field(default_factory=integers)

    def add(self, replica: int, cached_tokens: Sequence[int]) -> None:
        """A record was sent to ``replica`` when each replica had so many of its tokens cached."""
        self.replica.append(replica)
        self.cached_tokens.append(cached_tokens[replica])
        self.most_cached_tokens.append(max(cached_tokens))


class ClusterRecorder(Recorder):
    """The rows and sums of several servers together; those of each are in ``replicas``.

    Of a single replica all rows and sums are the same as its own.
    """

    requests: RoutedRequestColumns
    steps: ReplicaStepColumns

    def __init__(self, replicas: Sequence[Recorder], routing: Routing, peak_requests: int, num_unsent: int) -> None:
        """``replicas`` are closed."""
        super().__init__(replicas[0].scheduler)
        self.replicas = replicas
        self.routing = routing
        self._sent_to: list[list[int]] = [[] for _ in replicas]
        """Of each record that a replica accepted, in order, how many records were accepted anywhere before."""
        for index, replica_number in enumerate(routing.replica):
            self._sent_to[replica_number].append(index)
        self.requests = self._merged_requests()
        self.steps = self._merged_steps()
        self.peak_requests = peak_requests
        self.num_unsent = num_unsent
        self.end_ns = max(replica.end_ns for replica in replicas)
        for number, replica in enumerate(replicas):
            self.refused += replica.refused
            self.rejected += replica.rejected
            self.first_refused = replica.first_refused | self.first_refused
            add_counts(self.inter_token_latencies_ns, replica.inter_token_latencies_ns)
            add_counts(self.output_tokens_per_s, replica.output_tokens_per_s)
            self.unfinished += replica.unfinished
            self.num_requests_unknown_prefix += replica.num_requests_unknown_prefix
            self.incomplete_records |= {self._sent_to[number][index] for index in replica.incomplete_records}

    @property
    def statistics(self) -> EngineStatistics:
        total = _total([replica.statistics for replica in self.replicas])
        assert isinstance(total, EngineStatistics)
        return total

    @property
    def num_evictions(self) -> int:
        return sum(replica.num_evictions for replica in self.replicas)

    def _merged_requests(self) -> RoutedRequestColumns:
        merged = RoutedRequestColumns()
        own = _merge(merged, [replica.requests for replica in self.replicas], "finish_ns")
        for position, replica in enumerate(own):
            index = self._sent_to[replica][merged.record_index[position]]
            merged.record_index[position] = index
            merged.cached_tokens.append(self.routing.cached_tokens[index])
            merged.most_cached_tokens.append(self.routing.most_cached_tokens[index])
        merged.replica.extend(own)
        return merged

    def _merged_steps(self) -> ReplicaStepColumns:
        merged = ReplicaStepColumns()
        merged.replica.extend(_merge(merged, [replica.steps for replica in self.replicas], "scheduled_ns"))
        return merged


def _merge(into: _Columns, parts: Sequence[_Columns], key: str) -> list[int]:
    """Fill the columns that ``parts`` have, rows in order of ``key``; return which part each row is from."""
    import numpy as np

    keys = np.concatenate([np.asarray(getattr(part, key)) for part in parts])
    order = np.argsort(keys, kind="stable")  # of equal ones first the earlier part, then the earlier row
    for column in fields(parts[0]):
        values = [getattr(part, column.name) for part in parts]
        merged = getattr(into, column.name)
        if isinstance(merged, array):
            merged.frombytes(memoryview(np.concatenate([np.asarray(each) for each in values])[order]).cast("B"))
        else:
            every = [value for each in values for value in each]
            merged.extend(every[position] for position in order.tolist())
    part_of_row = np.repeat(np.arange(len(parts)), [len(getattr(part, key)) for part in parts])
    parts_in_order: list[int] = part_of_row[order].tolist()
    return parts_in_order


def _total(parts: Sequence[Any]) -> Any:
    """Counts of the same kind added up, one by one; lists position by position."""
    first = parts[0]
    if is_dataclass(first) and not isinstance(first, type):
        total: Any = type(first)()
        for each in fields(first):
            setattr(total, each.name, _total([getattr(part, each.name) for part in parts]))
        return total
    if isinstance(first, list):
        longest = max(map(len, parts))
        return [sum(part[position] for part in parts if position < len(part)) for position in range(longest)]
    return sum(parts) if isinstance(first, int) else first
