"""OpenTelemetry spans of calls to models (``gen_ai`` attributes): files of spans, and exports of a collector.

``{"trace_id": "t", "spans": [{"span_id": "a", "start_time": "2026-02-25T10:00:00.000000", "end_time": "...",
"attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": "[{\\"role\\": \\"user\\", ...}]",
"gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 20}}]}``; a collector writes ``resourceSpans`` with
attributes as lists and times as ``startTimeUnixNano``. Sources: https://opentelemetry.io/docs/specs/semconv/gen-ai,
https://github.com/kubernetes-sigs/inference-perf, ``examples/otel``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvtwin.workloads.formats.dates import DateParser
from kvtwin.workloads.formats.json_lines import decoder
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.recorded_thread import RecordedThread, RecordedTurn
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.formats.texts import TextReader, messages_of
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.text_tokens import ChatTokens

_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_SESSIONS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")


@dataclass(frozen=True)
class OtelReader(TextReader):
    """Reads spans of model calls, in order of their start; other spans (agents, tools) are left out and counted.

    A conversation (``gen_ai.conversation.id``, else the trace) is a session: its calls wait for one another as they
    did (`kvtwin.workloads.formats.recorded_thread`). Prompts are known by their messages; where a file has none, by
    their lengths.
    """

    name: ClassVar[str] = "otel"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("spans",))

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        values = first_rows[0].values if first_rows else {}
        return "spans" in values or "resourceSpans" in values or {"span_id", "attributes"} <= values.keys()

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        tokens, dates = ChatTokens(self.tokenizer), DateParser()
        calls: list[_Call] = []
        for row in rows:
            with rows.bad_lines:
                calls += [_Call(span, dates) for span in _spans(row) if _is_call(span, rows)]
        threads: dict[str, RecordedThread] = {}
        arrivals = NominalArrivals()
        for index, call in enumerate(sorted(calls, key=lambda call: call.sent_ns)):
            with rows.bad_lines:
                record = self._record(rows, call, tokens)
                record.request_id = f"{index}-{record.request_id}"
                thread = threads.setdefault(call.session, RecordedThread(call.session))
                record.think_time_ns, record.after = thread.waits(call.sent_ns)
                record.arrival_ns = arrivals.add(record, 0 if record.waits else call.sent_ns)
                thread.add(RecordedTurn(record.request_id, call.sent_ns, call.answered_ns))
                yield record

    def _record(self, rows: Rows, call: _Call, tokens: ChatTokens) -> RequestRecord:
        span = call.attributes
        prompt: list[int] | None = None
        if (messages := _messages(span, "gen_ai.input.messages")) is not None:
            self.tell(rows)
            prompt = tokens.prompt(messages_of(messages, "messages"))
        answer: list[int] | None = None
        if (messages := _messages(span, "gen_ai.output.messages")) is not None:
            answer = tokens.answer("".join(message.text for message in messages_of(messages, "messages")))
        elif "gen_ai.output.text" in span.values:
            answer = tokens.answer(span.text("gen_ai.output.text"))
        counted = _count(span, _OUTPUT_TOKENS)
        if counted is not None:
            output_tokens, answer = counted, answer if answer and len(answer) == counted else None
        else:
            output_tokens = len(answer) if answer else self.given_output(span, _OUTPUT_TOKENS[0])
        if prompt is None and (prompt_tokens := _count(span, _INPUT_TOKENS)) is None:
            raise span.error("gen_ai.input.messages", "expected it, or gen_ai.usage.input_tokens, found neither")
        return RequestRecord(
            request_id=call.name,
            arrival_ns=0,
            prompt_tokens=len(prompt) if prompt is not None else max(1, prompt_tokens or 0),
            output_tokens=output_tokens,
            token_ids=prompt,
            output_token_ids=answer,
            session=call.session,
            source=span.source,
        )


class _Call:
    """A span of a model call."""

    def __init__(self, span: JsonRow, dates: DateParser) -> None:
        self.attributes = _attributes(span)
        self.sent_ns = _time_ns(span, dates, "start_time", "startTimeUnixNano")
        self.answered_ns = max(self.sent_ns, _time_ns(span, dates, "end_time", "endTimeUnixNano"))
        values = self.attributes.values
        trace = str(span.values.get("trace_id") or span.values.get("traceId") or "")
        self.session = str(next((values[key] for key in _SESSIONS if key in values), trace))
        self.name = str(span.values.get("span_id") or span.values.get("spanId") or "span")


def _spans(row: JsonRow) -> Iterator[JsonRow]:
    """All spans of a row, however deep."""
    if "resourceSpans" in row.values:
        for resource in row.objects("resourceSpans"):
            for scope in resource.objects("scopeSpans"):
                yield from scope.objects("spans")
    elif "spans" in row.values:
        yield from row.objects("spans")
    else:
        yield row


def _is_call(span: JsonRow, rows: Rows) -> bool:
    values = _attributes(span).values
    if any(key in values for key in ("gen_ai.input.messages", *_INPUT_TOKENS)):
        return True
    rows.left_out["spans that call no model"] += 1
    return False


def _attributes(span: JsonRow) -> JsonRow:
    """Attributes by name; a collector writes them as a list of keys and typed values."""
    attributes = span.required("attributes")
    if isinstance(attributes, dict):
        return JsonRow(f"{span.source}: attributes", attributes)
    values: dict[str, Any] = {}
    for attribute in span.objects("attributes"):
        for kind, value in attribute.object("value").values.items():
            values[attribute.text("key")] = int(value) if kind == "intValue" else value
    return JsonRow(f"{span.source}: attributes", values)


def _time_ns(span: JsonRow, dates: DateParser, key: str, nanoseconds_key: str) -> int:
    if nanoseconds_key in span.values:
        text = str(span.values[nanoseconds_key])
        return JsonRow(span.source, {nanoseconds_key: int(text) if text.isdecimal() else text}).time_ns(
            nanoseconds_key, 1
        )
    return dates.of_any(span, key)


def _messages(span: JsonRow, key: str) -> JsonRow | None:
    """Messages, which many write as JSON in a string; None where there are none."""
    value = span.values.get(key)
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = decoder.decode(value)
        except (ValueError, RecursionError) as error:
            raise span.error(key, f"malformed JSON: {getattr(error, 'msg', None) or error}") from None
    return JsonRow(f"{span.source}: {key}", {"messages": value})


def _count(span: JsonRow, keys: Sequence[str]) -> int | None:
    return next((span.integer(key, minimum=0) for key in keys if span.values.get(key) is not None), None)
