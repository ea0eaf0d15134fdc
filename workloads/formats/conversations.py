"""Conversations of people with models: ShareGPT, LMSYS-Chat-1M, WildChat.

``{"id": "x", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]}`` is ShareGPT's;
``{"conversation_id": "x", "model": "m", "conversation": [{"role": "user", "content": "hello"}, ...], "turn": 1}`` that
of LMSYS-Chat-1M; WildChat has ``conversation_hash`` instead, and a ``timestamp``. Sources:
https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered, /lmsys/lmsys-chat-1m, /allenai/WildChat-1M.
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
from kvtwin.workloads.text_tokens import ChatTokens, Message

_KEYS = ("conversations", "conversation")
_IDS = ("id", "conversation_id", "conversation_hash")


@dataclass(frozen=True)
class ConversationsReader(TextReader):
    """Reads every answer of a model as a request, whose prompt is all that was said before.

    A conversation is a session without pauses: no file tells how long people thought. Conversations that hold no
    question with an answer are left out and counted.
    """

    name: ClassVar[str] = "conversations"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(_KEYS)

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        return bool(first_rows) and any(isinstance(first_rows[0].values.get(key), list) for key in _KEYS)

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        self.tell(rows)
        tokens, dates = ChatTokens(self.tokenizer), DateParser()
        names = set[str]()
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if not index:
                    rows.has_starts = "timestamp" in row.values
                key = next((key for key in _KEYS if key in row.values), _KEYS[0])
                name = next((str(row.values[key]) for key in _IDS if row.values.get(key) is not None), str(index))
                name = f"{name}#{index}" if name in names else name
                names.add(name)
                arrival_ns = dates.of_any(row, "timestamp") if rows.has_starts else 0
                records = list(_turns(row, name, messages_of(row, key), tokens, arrival_ns))
                if not records:
                    rows.left_out["no question with an answer"] += 1
                yield from records


def _turns(
    row: JsonRow, name: str, messages: list[Message], tokens: ChatTokens, arrival_ns: int
) -> Iterator[RequestRecord]:
    num_answers = 0
    for index, message in enumerate(messages):
        if message.role != "assistant" or not any(other.role == "user" for other in messages[:index]):
            continue
        prompt, answer = tokens.prompt(messages[:index]), tokens.answer(message.text)
        yield RequestRecord(
            request_id=f"{name}/{num_answers}",
            arrival_ns=arrival_ns,
            prompt_tokens=len(prompt),
            output_tokens=len(answer),
            token_ids=prompt,
            output_token_ids=answer,
            session=name,
            think_time_ns=0 if num_answers else None,
            source=row.source,
        )
        num_answers += 1
