"""Prompts, one a line, with the length of their outputs: datasets of benchmarks.

``{"prompt": "What is the capital of India?", "output_tokens": 10}`` is what ``vllm bench serve --dataset-name custom``
reads (vLLM, ``vllm/benchmarks/datasets``: `CustomDataset`); SGLang's rows have ``output_len`` (sgl-project/sglang,
``bench_serving.py``: `DatasetRow`). AIPerf's are ``{"text_input": "hello", "output_length": 10, "timestamp": 0}``, or
sessions ``{"session_id": "s", "turns": [{"text": "hello", "delay": 0}, {"text": "go on", "delay": 1000}]}``
(https://github.com/ai-dynamo/aiperf, ``docs``): milliseconds, and each turn says only what is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow, is_list
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.formats.texts import TextReader
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.text_tokens import ChatTokens, Message
from kvtwin.workloads.time_units import MILLISECOND_NS

_TEXTS = ("prompt", "text_input", "text")
_OUTPUTS = ("output_tokens", "output_len", "output_length", "max_tokens")
_UNKNOWN = 1 << 40
"""First id of tokens that nobody knows: what models answered."""


@dataclass(frozen=True)
class PromptsReader(TextReader):
    """Reads prompts as they are, as text or as token ids; turns of a session become a chat.

    What the answers between turns say is unknown, but every later prompt repeats them.
    """

    name: ClassVar[str] = "prompts"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(_TEXTS)

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        values = first_rows[0].values if first_rows else {}
        return any(isinstance(values.get(key), str) or is_list(values.get(key)) for key in (*_TEXTS, "turns"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        tokens, arrivals = ChatTokens(self.tokenizer), NominalArrivals()
        next_unknown = _UNKNOWN
        for index, row in enumerate(rows):
            with rows.bad_lines:
                if not index:
                    rows.has_starts = _has_time(row)
                if "turns" in row.values:
                    records = list(self._session(rows, row, index, tokens, next_unknown))
                    next_unknown += sum(record.output_tokens for record in records)
                else:
                    records = [self._single(rows, row, index, tokens)]
                for record in records:
                    record.arrival_ns = arrivals.add(record, record.arrival_ns)
                yield from records

    def _single(self, rows: Rows, row: JsonRow, index: int, tokens: ChatTokens) -> RequestRecord:
        key = next((key for key in _TEXTS if key in row.values), _TEXTS[0])
        if is_list(row.required(key)):
            prompt = list(row.integers(key, minimum=0))
        else:
            self.tell(rows)
            prompt = tokens.of_text(row.text(key))
        if not prompt:
            raise row.error(key, "expected at least 1 token")
        return RequestRecord(
            request_id=row.text("request_id") if "request_id" in row.values else str(index),
            arrival_ns=row.time_ns("timestamp", MILLISECOND_NS) if rows.has_starts else 0,
            prompt_tokens=len(prompt),
            output_tokens=self.given_output(row, *_OUTPUTS),
            token_ids=prompt,
            source=row.source,
        )

    def _session(
        self, rows: Rows, row: JsonRow, index: int, tokens: ChatTokens, next_unknown: int
    ) -> Iterator[RequestRecord]:
        self.tell(rows)
        name = row.text("session_id") if "session_id" in row.values else str(index)
        sequence: list[int] = []
        for number, turn in enumerate(row.objects("turns")):
            key = next((key for key in _TEXTS if key in turn.values), "text")
            sequence += tokens.prompt([Message("user", turn.text(key))])
            output_tokens = self.given_output(turn, *_OUTPUTS)
            answer = list(range(next_unknown, next_unknown + output_tokens))
            next_unknown += output_tokens
            pause_ns = turn.time_ns("delay", MILLISECOND_NS) if turn.values.get("delay") is not None else 0
            start = turn if "timestamp" in turn.values else row
            yield RequestRecord(
                request_id=f"{name}/{number}",
                arrival_ns=start.time_ns("timestamp", MILLISECOND_NS) if rows.has_starts and not number else 0,
                prompt_tokens=len(sequence),
                output_tokens=output_tokens,
                token_ids=list(sequence),
                output_token_ids=answer,
                session=name,
                think_time_ns=pause_ns if number else None,
                source=row.source,
            )
            sequence += answer


def _has_time(row: JsonRow) -> bool:
    """Whether the first row has an arrival time, itself or in its first turn."""
    if "timestamp" in row.values:
        return True
    turns = row.values.get("turns")
    return bool(turns) and isinstance(turns[0], dict) and "timestamp" in turns[0]
