"""The multi-turn variant of Mooncake's JSON lines that AIPerf and Dynamo (there ``mooncake-delta``) write.

``{"session_id": "s", "timestamp": 0, "input_length": 16, "output_length": 4, "hash_ids": [201]}``, then
``{"session_id": "s", "delay": 5, "input_length": 8, "output_length": 4, "hash_ids": [202]}``: the first row of a
session is its first prompt, later rows give only what is new. Sources: https://github.com/ai-dynamo/aiperf and
https://github.com/ai-dynamo/dynamo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.growing_prompt import GrowingPrompt
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.mooncake import MooncakeReader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import RequestRecord


@dataclass(frozen=True, kw_only=True)
class MooncakeDeltaReader(MooncakeReader):
    """Reads rows of sessions: the prompt of a later row is the prompt before, its output and the row's new tokens.

    ``delay`` counts from the end of the answer before; where it is missing, the difference of the timestamps does.
    Ids of a first prompt are shared between sessions as in Mooncake. Those of later rows follow an output, which
    belongs to one session, so only the session itself can repeat them: the whole of it, outputs too, is one prefix that
    grows. A row without session is a prompt of its own.
    """

    name: ClassVar[str] = "mooncake-delta"

    @property
    def first_row_names(self) -> frozenset[str]:
        return super().first_row_names | {"session_id"}

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        return super().recognises(first_rows) and any("delay" in row.values for row in first_rows)

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        dense_ids: dict[int | str | tuple[str], int] = {}
        sessions: dict[str, _Session] = {}
        arrivals = NominalArrivals()
        for index, row in enumerate(rows):
            with rows.bad_lines:
                yield self._record(row, index, dense_ids, sessions, arrivals)

    def _record(
        self,
        row: JsonRow,
        index: int,
        dense_ids: dict[int | str | tuple[str], int],
        sessions: dict[str, _Session],
        arrivals: NominalArrivals,
    ) -> RequestRecord:
        new_tokens = row.integer(self.input_length_key, minimum=1)
        output_tokens = row.integer(self.output_length_key, minimum=0)
        priority = row.integer("priority") if "priority" in row.values else 0
        request_id = row.text("request_id") if "request_id" in row.values else str(index)
        names = self._hash_ids(row, new_tokens)
        first_ids = [dense_ids.setdefault(name, len(dense_ids)) for name in names or ()]
        name = row.text("session_id") if row.values.get("session_id") is not None else None
        think_time_ns = None
        if name in sessions:
            session = sessions[name]
            think_time_ns = self._pause_ns(row, session.timestamp_ns)
        else:
            if row.values.get("delay"):
                raise row.error("delay", "expected none in the first row of a session")
            own_id = dense_ids.setdefault((name or row.source,), len(dense_ids))
            session = _Session(GrowingPrompt(first_ids, self.hash_block_tokens, own_id))
        if self.timestamp_key in row.values or think_time_ns is None:
            session.timestamp_ns = row.time_ns(self.timestamp_key, self.time_unit_ns)
        if name is not None:
            sessions[name] = session
        prompt_tokens, hash_ids, hash_id_ends = session.prompt.add_turn(new_tokens, output_tokens)
        is_known = name is not None or names is not None
        record = RequestRecord(
            request_id=request_id,
            arrival_ns=0,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            hash_ids=hash_ids if is_known else None,
            hash_id_ends=hash_id_ends if is_known else None,
            priority=priority,
            session=name,
            think_time_ns=think_time_ns,
            source=row.source,
        )
        record.arrival_ns = arrivals.add(record, 0 if record.waits else session.timestamp_ns)
        return record

    def _pause_ns(self, row: JsonRow, last_timestamp_ns: int) -> int:
        if row.values.get("delay") is not None:
            return row.time_ns("delay", self.time_unit_ns)
        if self.timestamp_key not in row.values:
            raise row.error("delay", f"expected it or {self.timestamp_key} in a later row of a session, found neither")
        return max(0, row.time_ns(self.timestamp_key, self.time_unit_ns) - last_timestamp_ns)


@dataclass
class _Session:
    prompt: GrowingPrompt
    timestamp_ns: int = 0
    """The latest timestamp."""
