"""Dynamo's request traces: logs of events, of which ``request_end`` describes a request.

``{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "agent_context": {"session_id": "child",
"parent_session_id": "parent"}, "request": {"request_id": "r", "output_tokens": 2, "request_received_ms": 1000,
"total_time_ms": 10, "replay": {"trace_block_size": 4, "input_length": 4, "input_sequence_hashes": [401]}}}``: Unix
time, and one hash of the whole prefix per block of the prompt. Source: https://github.com/ai-dynamo/dynamo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.recorded_thread import RecordedThread, RecordedTurn
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import Predecessor, RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS

_SCHEMA = "dynamo.request.trace.v1"


@dataclass(frozen=True)
class DynamoRequestsReader(Reader):
    """Reads ``request_end`` events, and of ``tool_end`` events which request waited for a sub-agent; skips others.

    Requests come in the order in which they were received; the log, in order of ends, is held in memory. The turns of a
    ``session_id`` wait for one another as they did in the log (`kvtwin.workloads.formats.recorded_thread`). The first
    of a session with a parent waits for the request that a ``tool_end`` names (``source_request_id``), else for the
    parent's latest. A request that consumed the result of a ``blocking`` sub-agent waits for that session. Without
    ``agent_context`` requests arrive when they were received.
    """

    name: ClassVar[str] = "dynamo-requests"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("event_type",))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        requests, spawned_by, children_of = [], dict[str, str](), dict[str, list[str]]()
        for row in rows:
            with rows.bad_lines:
                event_type = row.text("event_type")
                if event_type == "request_end":
                    requests.append(_Ended(row))
                elif event_type == "tool_end" and (call := _sub_agent_call(row)) is not None:
                    child = call.text("child_session_id")
                    spawned_by[child] = call.text("source_request_id")
                    if call.text("execution_mode") == "blocking":
                        children_of.setdefault(call.text("consumer_request_id"), []).append(child)
        threads: dict[str, RecordedThread] = {}
        turns: dict[str, RecordedTurn] = {}
        dense_ids: dict[int | str, int] = {}
        arrivals = NominalArrivals()
        for ended in sorted(requests, key=lambda ended: ended.turn.sent_ns):
            think_time_ns: int | None = None
            after: tuple[Predecessor, ...] = ()
            if ended.session is not None:
                if ended.session not in threads:
                    parent = threads.get(ended.parent or "")
                    spawn = turns.get(spawned_by.get(ended.session, "")) or (parent and parent.last_turn)
                    threads[ended.session] = RecordedThread(ended.session, [spawn] if spawn else [])
                thread = threads[ended.session]
                for child in children_of.get(ended.turn.request_id, ()):
                    if child in threads and (last := threads[child].last_turn) is not None:
                        thread.awaited.append(last)
                think_time_ns, after = thread.waits(ended.turn.sent_ns)
                thread.add(ended.turn)
                turns[ended.turn.request_id] = ended.turn
            record = RequestRecord(
                request_id=ended.turn.request_id,
                arrival_ns=0,
                prompt_tokens=ended.prompt_tokens,
                output_tokens=ended.output_tokens,
                hash_ids=[dense_ids.setdefault(name, len(dense_ids)) for name in ended.names],
                hash_block_tokens=ended.block_tokens,
                session=ended.session,
                think_time_ns=think_time_ns,
                after=after,
                source=ended.source,
            )
            record.arrival_ns = arrivals.add(record, 0 if record.waits else ended.turn.sent_ns)
            yield record


class _Ended:
    """A ``request_end`` event, checked."""

    def __init__(self, row: JsonRow) -> None:
        if (schema := row.text("schema")) != _SCHEMA:
            raise row.error("schema", f"expected {_SCHEMA!r}, got {shown(schema)}")
        self.source = row.source
        request = row.object("request")
        sent_ns = request.time_ns("request_received_ms", MILLISECOND_NS)
        taken_ns = request.time_ns("total_time_ms", MILLISECOND_NS)
        self.turn = RecordedTurn(request.text("request_id"), sent_ns, sent_ns + taken_ns)
        self.output_tokens = request.integer("output_tokens", minimum=0)
        replay = request.object("replay")
        self.block_tokens = replay.integer("trace_block_size", minimum=1)
        self.prompt_tokens = replay.integer("input_length", minimum=1)
        self.names = replay.block_names("input_sequence_hashes", self.prompt_tokens, self.block_tokens)
        self.session = self.parent = None
        if row.values.get("agent_context") is not None:
            context = row.object("agent_context")
            self.session = context.text("session_id")
            if context.values.get("parent_session_id") is not None:
                self.parent = context.text("parent_session_id")


def _sub_agent_call(row: JsonRow) -> JsonRow | None:
    """What a ``tool_end`` event tells of the sub-agent that the tool was; None if it was another tool."""
    tool = row.object("tool")
    if tool.values.get("claude") is None:
        return None
    call = tool.object("claude")
    return call if call.values.get("child_session_id") is not None else None
