"""Playing the sessions of a workload: which of them, from when on, and with what pauses."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from kvtwin.workloads.arrivals import arrivals_ns, check_rate
from kvtwin.workloads.nominal_arrivals import NominalArrivals, as_recorded
from kvtwin.workloads.request_record import Predecessor, RequestRecord
from kvtwin.workloads.workload import reordered


class PlayedSessions:
    """The requests of ``records``, with sessions chosen, started and paced anew, in order of arrival.

    A session and those that wait for it (sub-agents) start, and are left out, together; here they count as one.
    A request without session is a session of its own.

    * ``num_sessions``: play so many of them, drawn at random; they keep their order.
    * ``session_rate``: they start as a gamma process of so many per second (`kvtwin.workloads.arrivals`); infinity
    starts
      all at 0. Else they start when the file says.
    * ``concurrent_sessions``: instead, so many users play them one after another: session ``k`` starts when session
      ``k - concurrent_sessions`` is over.
    * ``pause_ns``: from the recorded to the played pause behind an answer, ns. Turns then follow from pauses alone,
      whatever arrival the file gives them.

    ``records`` are read once per iteration, and ``turns`` once here: the same requests, perhaps without their prompts;
    None: they themselves. Random numbers come from ``seed``.
    """

    def __init__(
        self,
        records: Iterable[RequestRecord],
        *,
        turns: Iterable[RequestRecord] | None = None,
        num_sessions: int | None = None,
        session_rate: float | None = None,
        burstiness: float = 1.0,
        concurrent_sessions: int | None = None,
        pause_ns: Callable[[int], int] | None = None,
        seed: int = 0,
    ) -> None:
        self._records = records
        self._pause_ns = pause_ns
        self._session_of_row = array("q")
        """Of each record, its session's number."""
        self._offsets_ns = array("q")
        """Of each record, its arrival counted from the start of its session."""
        self._starts_ns: list[int] = []
        """Of each session."""
        self._last_requests: list[dict[str, str]] = []
        """Of each session, the last request of each of its threads: itself and its sub-agents."""
        self._waits_for: dict[int, int] = {}
        """Which session must be over before a session starts."""
        self.has_later_turns = False
        """Whether any request of ``records`` waits for the answer to another one."""
        self._read(records if turns is None else turns)
        rng = np.random.default_rng(seed)
        played = self._choose(num_sessions, rng)
        if session_rate is not None:
            check_rate(session_rate, burstiness)
            for session, start_ns in zip(played, arrivals_ns(rng, session_rate, burstiness), strict=False):
                self._starts_ns[session] = start_ns
        if concurrent_sessions is not None:
            self._chain(played, concurrent_sessions)
        is_played = np.zeros(len(self._starts_ns), dtype=bool)
        is_played[played] = True
        self._is_played = is_played[np.asarray(self._session_of_row)]
        self._arrivals_ns = np.asarray(self._starts_ns, dtype=np.int64)[np.asarray(self._session_of_row)]
        self._arrivals_ns += np.asarray(self._offsets_ns)
        times_ns = self._arrivals_ns[self._is_played]
        self._ranks = np.empty(len(times_ns), dtype=np.int64)
        self._ranks[np.argsort(times_ns, kind="stable")] = np.arange(len(times_ns))
        self.num_sessions = len(played)
        self.last_arrival_ns = int(times_ns.max())

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[RequestRecord]:
        return reordered(self._played(), self._ranks)

    def _read(self, turns: Iterable[RequestRecord]) -> None:
        """Number the sessions, and measure the arrivals of their turns from their starts."""
        nominal = NominalArrivals(self._pause_ns or as_recorded)
        session_of_name: dict[str, int] = {}
        session_of_request: dict[str, int] = {}
        for record in turns:
            name = record.session
            self.has_later_turns |= record.waits
            if name in session_of_name:
                session = session_of_name[name]
            elif record.after:
                session = session_of_request[record.after[0].request_id]
            else:
                session = len(self._starts_ns)
                self._starts_ns.append(record.arrival_ns)
                self._last_requests.append({})
            if name is not None:
                session_of_name[name] = session_of_request[record.request_id] = session
            self._last_requests[session][name or record.request_id] = record.request_id
            self._session_of_row.append(session)
            offset_ns = record.arrival_ns - self._starts_ns[session]
            if self._pause_ns is not None:
                offset_ns = nominal.add(record, 0 if record.waits else offset_ns)
            self._offsets_ns.append(offset_ns)

    def _choose(self, num_sessions: int | None, rng: np.random.Generator) -> list[int]:
        found = len(self._starts_ns)
        if num_sessions is None or num_sessions >= found:
            return list(range(found))
        return sorted(rng.choice(found, num_sessions, replace=False).tolist())

    def _chain(self, played: list[int], concurrent_sessions: int) -> None:
        """Deal the sessions out to users in turn. A start is as early as it can be, as if answers took no time."""
        lengths_ns = np.zeros(len(self._starts_ns), dtype=np.int64)
        np.maximum.at(lengths_ns, np.asarray(self._session_of_row), np.asarray(self._offsets_ns))
        for session in played:
            self._starts_ns[session] = 0
        for before, session in zip(played, islice(played, concurrent_sessions, None), strict=False):
            self._waits_for[session] = before
            self._starts_ns[session] = self._starts_ns[before] + int(lengths_ns[before])

    def _played(self) -> Iterator[RequestRecord]:
        started = set[int]()
        for row, record in enumerate(self._records):
            if not self._is_played[row]:
                continue
            session = self._session_of_row[row]
            record = replace(record, arrival_ns=int(self._arrivals_ns[row]))
            if self._pause_ns is not None:
                self._set_pauses(record, self._pause_ns)
            if self._waits_for:
                record.session = record.session or record.request_id
                if session in self._waits_for and session not in started:
                    last = self._last_requests[self._waits_for[session]].values()
                    record.after = tuple(Predecessor(request_id=name, delay_ns=0) for name in last)
                started.add(session)
            yield record

    @staticmethod
    def _set_pauses(record: RequestRecord, pause_ns: Callable[[int], int]) -> None:
        if record.think_time_ns is not None:
            record.think_time_ns = pause_ns(record.think_time_ns)
        record.after = tuple(
            of if of.dispatched else replace(of, delay_ns=pause_ns(of.delay_ns)) for of in record.after
        )
