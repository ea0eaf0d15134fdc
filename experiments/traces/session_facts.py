"""The sessions of a workload: their number, turns and pauses."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvtwin.workloads.multiset import Multiset
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_PERCENTILES = (50, 90, 99)


class SessionFacts:
    """Counts sessions and their pauses; `add` every request once, in order."""

    def __init__(self) -> None:
        self._turns = Counter[str]()
        self._pauses_ns = Counter[int]()
        self._num_sub_agents = 0

    def add(self, record: RequestRecord) -> None:
        """The next request."""
        answers = [of.delay_ns for of in record.after if not of.dispatched]
        if record.think_time_ns is not None:
            answers.append(record.think_time_ns)
        if answers:
            self._pauses_ns[max(answers)] += 1
        if record.session is not None:
            self._num_sub_agents += record.session not in self._turns and bool(record.after)
            self._turns[record.session] += 1

    def facts(self) -> dict[str, Any]:
        """As plain data. Sub-agents count as sessions, and are the sessions whose first turn waits for another's.

        ``pauses_s`` are the pauses after answers, in seconds; None if there are none.
        """
        pauses_s = summary_of(self._pauses_ns)
        return {
            "num_sessions": len(self._turns),
            "num_sub_agents": self._num_sub_agents,
            "num_later_turns": self._turns.total() - len(self._turns),
            "turns_per_session": summary_of(Counter(self._turns.values())),
            "pauses_s": pauses_s and {name: value / SECOND_NS for name, value in pauses_s.items()},
        }


def summary_of(counts: Counter[int]) -> dict[str, float] | None:
    """Total, mean, percentiles and maximum of numbers that occur ``counts[number]`` times; None without numbers."""
    if not counts:
        return None
    numbers = Multiset(counts)
    percentiles = {f"p{percent}": numbers.percentile(percent) for percent in _PERCENTILES}
    return {"total": numbers.total(), "mean": numbers.mean()} | percentiles | {"max": numbers.largest()}
