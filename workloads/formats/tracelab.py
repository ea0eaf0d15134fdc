"""TraceLab's traces of coding agents: replay files (CSV) and logs of rounds (JSON lines).

``session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms``: milliseconds; the prompt of a
round is ``prefix_len`` tokens that were there before and ``input_len`` new ones. Some files have no ``arrival_time``.

``{"session_id": "s", "round_index": 0, "model": "m", "input_tokens_total": 32272, "prefix_tokens": 27217,
"output_tokens": 931, "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.151Z"}]}``:
``prefix_tokens`` are those that the provider read from its cache. Source: https://github.com/uw-syfi/TraceLab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.dates import DateParser
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.recorded_thread import RecordedThread, RecordedTurn
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.formats.session_tokens import SessionTokens
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS

_INPUTS = ("user_message", "tool_result")
"""Events before the model is called."""


@dataclass(frozen=True)
class TraceLabReader(Reader):
    """Reads replay files. A round waits for the answer before it, and ``tool_wait_after_ms`` of that row."""

    name: ClassVar[str] = "tracelab"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("session_id", "round_idx", "prefix_len", "input_len", "output_len"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        tokens, arrivals = SessionTokens(), NominalArrivals()
        pauses_ns: dict[str, int] = {}
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if not index:
                    rows.has_starts = "arrival_time" in row.values
                session = row.text("session_id")
                prefix, new = row.integer("prefix_len", minimum=0), row.integer("input_len", minimum=0)
                output_tokens = row.integer("output_len", minimum=0)
                if prefix + new < 1:
                    raise row.error("input_len", "expected a prompt of at least 1 token, with prefix_len")
                start_ns = row.time_ns("arrival_time", MILLISECOND_NS) if rows.has_starts else 0
                wait_ns = row.time_ns("tool_wait_after_ms", MILLISECOND_NS) if "tool_wait_after_ms" in row.values else 0
                prompt, output = tokens.turn(session, None, prefix, new, output_tokens)
                record = RequestRecord(
                    request_id=f"{session}/{row.integer('round_idx', minimum=0)}",
                    arrival_ns=0,
                    prompt_tokens=len(prompt),
                    output_tokens=output_tokens,
                    token_ids=prompt,
                    output_token_ids=output,
                    session=session,
                    think_time_ns=pauses_ns.get(session),
                    source=row.source,
                )
                record.arrival_ns = arrivals.add(record, 0 if record.waits else start_ns)
                pauses_ns[session] = wait_ns
                yield record


@dataclass(frozen=True)
class TraceLabRoundsReader(Reader):
    """Reads logs of rounds, session after session. Rounds wait for one another as they did in the log.

    What the provider read from its cache in a first round is taken for the same text in all sessions of its model.
    """

    name: ClassVar[str] = "tracelab-rounds"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("session_id", "input_tokens_total", "prefix_tokens", "timing_events"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        tokens, arrivals, dates = SessionTokens(), NominalArrivals(), DateParser()
        threads: dict[str, RecordedThread] = {}
        for row in rows:
            with rows.bad_lines:
                name = row.text("session_id")
                times_ns = _times_ns(row, dates)
                total = row.integer("input_tokens_total", minimum=1)
                prefix = min(row.integer("prefix_tokens", minimum=0), total)
                output_tokens = row.integer("output_tokens", minimum=0)
                request_id = f"{name}/{row.integer('round_index', minimum=0)}"
                model = row.text("model") if row.values.get("model") is not None else ""
                thread = threads.setdefault(name, RecordedThread(name))
                prompt, output = tokens.turn(name, model, prefix, total - prefix, output_tokens)
                think_time_ns, after = thread.waits(times_ns[0])
                record = RequestRecord(
                    request_id=request_id,
                    arrival_ns=0,
                    prompt_tokens=total,
                    output_tokens=output_tokens,
                    token_ids=prompt,
                    output_token_ids=output,
                    session=name,
                    think_time_ns=think_time_ns,
                    after=after,
                    source=row.source,
                )
                record.arrival_ns = arrivals.add(record, 0 if record.waits else times_ns[0])
                thread.add(RecordedTurn(request_id, times_ns[0], times_ns[1]))
                yield record


def _times_ns(row: JsonRow, dates: DateParser) -> tuple[int, int]:
    """When a round's input was complete, and when its last output came."""
    events = [event for event in row.objects("timing_events") if event.values.get("timestamp") is not None]
    inputs = [dates.of(event, "timestamp") for event in events if event.values.get("event_type") in _INPUTS]
    outputs = [dates.of(event, "timestamp") for event in events if event.values.get("event_type") not in _INPUTS]
    if not inputs and not outputs:
        raise row.error("timing_events", "expected at least one with a timestamp")
    sent_ns = max(inputs) if inputs else min(outputs)
    return sent_ns, max([sent_ns, *outputs])
