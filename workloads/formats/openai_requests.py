"""Requests to OpenAI's API, one a line: logs of chats and completions, batches, and examples to train on.

``{"timestamp": 1764000000.0, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 64, "usage":
{"prompt_tokens": 21, "completion_tokens": 9}}``; in a batch ``{"custom_id": "r", "method": "POST", "url":
"/v1/chat/completions", "body": {"messages": [...], "max_tokens": 64}}``. Source: https://platform.openai.com/docs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.dates import DateParser
from kvtwin.workloads.formats.json_rows import JsonRow
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.formats.texts import TextReader, messages_of
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.text_tokens import ChatTokens

_TIMES = ("timestamp", "created", "created_at", "time")
_OUTPUTS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_ODD = 0.1
"""Share by which the text may differ from the lengths that the service counted, before it is told."""


@dataclass(frozen=True)
class OpenAIReader(TextReader):
    """Reads bodies, flat or under ``body`` or ``request``.

    An output is as long as ``usage`` says; else as the answer at the end of ``messages`` is; else it is what the
    request allows. What it says is known only where it stands there. Requests are independent of each other: they
    arrive at their time (``timestamp`` or ``created``), if there is one.
    """

    name: ClassVar[str] = "openai"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("messages",))

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        if not first_rows:
            return False
        values = first_rows[0].values
        bodies = [values, *(values[key] for key in ("body", "request") if isinstance(values.get(key), dict))]
        return any(isinstance(body.get("messages"), list) for body in bodies) or (
            "custom_id" in values and "prompt" in bodies[-1]
        )

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        self.tell(rows)
        tokens, dates = ChatTokens(self.tokenizer), DateParser()
        guessed = counted = 0
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if not index:
                    rows.has_starts = any(key in row.values for key in _TIMES)
                record = self._record(row, index, tokens)
                if rows.has_starts:
                    record.arrival_ns = dates.of_any(row, next((key for key in _TIMES if key in row.values), _TIMES[0]))
                usage = _usage(row)
                if usage and usage.values.get("prompt_tokens") is not None:
                    guessed += record.prompt_tokens
                    counted += usage.integer("prompt_tokens", minimum=0)
                yield record
        if counted and abs(guessed - counted) > _ODD * counted:
            rows.notes[f"prompts have {guessed:,} tokens here, {counted:,} as the service counted them"] = None

    def _record(self, row: JsonRow, index: int, tokens: ChatTokens) -> RequestRecord:
        body = next((row.object(key) for key in ("body", "request") if isinstance(row.values.get(key), dict)), row)
        answer: list[int] | None = None
        if "messages" in body.values:
            messages = messages_of(body, "messages")
            if not messages:
                raise body.error("messages", "expected at least one")
            if messages[-1].role == "assistant" and len(messages) > 1:
                answer = tokens.answer(messages.pop().text)
            prompt = tokens.prompt(messages)
        else:
            prompt = tokens.of_text(body.text("prompt"))
        usage = _usage(row)
        if usage and usage.values.get("completion_tokens") is not None:
            output_tokens = usage.integer("completion_tokens", minimum=0)
            answer = None
        else:
            output_tokens = len(answer) if answer is not None else self.given_output(body, *_OUTPUTS)
        name = next((row.values[key] for key in ("custom_id", "id", "request_id") if key in row.values), index)
        return RequestRecord(
            request_id=str(name),
            arrival_ns=0,
            prompt_tokens=max(1, len(prompt)),
            output_tokens=output_tokens,
            token_ids=prompt or [0],
            output_token_ids=answer,
            n=body.integer("n", minimum=1) if body.values.get("n") is not None else 1,
            source=row.source,
        )


def _usage(row: JsonRow) -> JsonRow | None:
    """What the service counted: beside the request, or in the response that is logged with it."""
    if isinstance(row.values.get("usage"), dict):
        return row.object("usage")
    if isinstance(row.values.get("response"), dict):
        response = row.object("response")
        return _usage(response.object("body") if isinstance(response.values.get("body"), dict) else response)
    return None
