"""Weka's agentic traces: real coding-agent sessions, one JSON object per session, a file of one or a line each.

``{"id": "trace_0001", "block_size": 64, "hash_id_scope": "local", "requests": [{"t": 13.0, "type": "n", "model": "m",
"in": 11300, "out": 96, "hash_ids": [1, 2, ...], "api_time": 3.09, "think_time": 4.0}, {"t": 90.0, "type": "subagent",
"agent_id": "agent_001", "duration_ms": 46656, "requests": [...]}]}``: seconds from the start of the session; one
chained id per *full* block of the prompt. Source: https://github.com/callanjfox/kv-cache-tester, ``traces``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import numpy as np

from kvtwin.workloads.formats.json_rows import JsonRow, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.recorded_thread import RecordedThread, RecordedTurn
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

_ROUNDING_NS = SECOND_NS
"""Times are mostly whole seconds, so a request may seem to start so much before the answer that it follows."""

_MOST_IDS = 2**32
"""Ids of one session and model; so many numbers are set aside for them."""


@dataclass(frozen=True)
class WekaReader(Reader):
    """Reads Weka's sessions, one after the other; each starts at 0, because they have no wall-clock time.

    A turn waits for the turn before and pauses as long as the trace did: from the end of that answer (``t`` plus
    ``api_time``, none where it is missing) to its own ``t``; ``think_time`` says the same, to whole seconds. A turn
    that starts while the answer before is still coming waits for its dispatch instead. A sub-agent is a session of
    its own that waits for the parent's turn before it. Its ``t`` is when it ended, ``duration_ms`` before that it
    started, and the parent's next turn waits for its last; without duration (``async_launched``) ``t`` is its start
    and nobody waits.

    Ids are local to a session and a model: equal ids of two models are told apart, as their caches would be.
    Outputs have no ids: what a later turn repeats of an answer misses.
    """

    name: ClassVar[str] = "weka"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("id", "block_size", "hash_id_scope", "requests"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        names = set[str]()
        namespaces = count()
        rows.has_starts = False
        for row in rows:
            with rows.bad_lines:
                session = _Session(row, namespaces)
                if session.name in names:
                    raise row.error("id", f"expected a new session, got {shown(session.name)} again")
                records = list(session.records())
                names.add(session.name)
                yield from records


class _Session:
    """One session: its main thread and its sub-agents."""

    def __init__(self, row: JsonRow, namespaces: Iterator[int]) -> None:
        self.name = row.text("id")
        self._row = row
        self._block_tokens = row.integer("block_size", minimum=1)
        if (scope := row.text("hash_id_scope")) != "local":
            raise row.error("hash_id_scope", f"expected 'local', got {shown(scope)}")
        self._namespaces = namespaces
        self._first_id_of_model: dict[str, int] = {}
        self._arrivals = NominalArrivals()

    def records(self) -> Iterator[RequestRecord]:
        """Main thread and sub-agents, in the order of the file."""
        main = RecordedThread(self.name, rounding_ns=_ROUNDING_NS)
        for entry in self._row.objects("requests"):
            if entry.text("type") == "subagent":
                yield from self._sub_agent(entry, main)
            else:
                yield self._turn(entry, main, entry.time_ns("t", SECOND_NS))

    def _sub_agent(self, entry: JsonRow, parent: RecordedThread) -> Iterator[RequestRecord]:
        start_ns = entry.time_ns("t", SECOND_NS)
        is_waited_for = entry.values.get("duration_ms") is not None
        if is_waited_for:
            start_ns = max(0, start_ns - entry.time_ns("duration_ms", MILLISECOND_NS))
        spawned_by = [parent.last_turn] if parent.last_turn else []
        thread = RecordedThread(f"{self.name}/{entry.text('agent_id')}", spawned_by, _ROUNDING_NS)
        for turn in entry.objects("requests"):
            yield self._turn(turn, thread, start_ns + turn.time_ns("t", SECOND_NS))
        if is_waited_for and thread.last_turn:
            parent.awaited.append(thread.last_turn)

    def _turn(self, row: JsonRow, thread: RecordedThread, sent_ns: int) -> RequestRecord:
        if row.text("type") not in ("n", "s"):
            raise row.error("type", f"expected 'n' or 's', or 'subagent' in the main thread, got {row.text('type')!r}")
        prompt_tokens = row.integer("in", minimum=1)
        think_time_ns, after = thread.waits(sent_ns)
        record = RequestRecord(
            request_id=f"{thread.name}/{thread.num_turns}",
            arrival_ns=0,
            prompt_tokens=prompt_tokens,
            output_tokens=row.integer("out", minimum=0),
            hash_ids=self._hash_ids(row, prompt_tokens // self._block_tokens),
            hash_block_tokens=self._block_tokens,
            session=thread.name,
            think_time_ns=think_time_ns,
            after=after,
            source=row.source,
        )
        record.arrival_ns = self._arrivals.add(record, 0 if record.waits else sent_ns)
        api_time_ns = 0 if row.values.get("api_time") is None else row.time_ns("api_time", SECOND_NS)
        thread.add(RecordedTurn(record.request_id, sent_ns, sent_ns + api_time_ns))
        return record

    def _hash_ids(self, row: JsonRow, num_full_blocks: int) -> array[int]:
        ids = row.integers("hash_ids", minimum=0)
        if len(ids) != num_full_blocks:
            raise row.error(
                "hash_ids",
                f"expected floor({row.values['in']}/{self._block_tokens}) = {num_full_blocks} ids, got {len(ids)}",
            )
        numbers = np.asarray(ids, dtype=np.int64)
        if numbers.max(initial=0) >= _MOST_IDS:
            raise row.error("hash_ids", f"expected ids below {_MOST_IDS}, got {numbers.max()}")
        model = row.text("model")
        if model not in self._first_id_of_model:
            self._first_id_of_model[model] = next(self._namespaces) * _MOST_IDS
        return array("q", (numbers + self._first_id_of_model[model]).tobytes())
