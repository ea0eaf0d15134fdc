"""Mooncake's JSON-lines traces (FAST'25), and other files of the same shape.

``{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ...]}``: milliseconds
from the start; one id per started 512 tokens of the prompt, chained, so that an id names the whole prefix
up to its end. Source: https://github.com/kvcache-ai/Mooncake, ``FAST25-release/traces``.

The settings are those of ``vllm bench serve --dataset-name timed_trace``, but with Mooncake's values as
defaults; vLLM's own (16 tokens an id, seconds) misread a Mooncake file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kvtwin.workloads.columns import NotPlainError, RecordColumns
from kvtwin.workloads.formats.dense_ids import DenseIds
from kvtwin.workloads.formats.json_columns import json_columns
from kvtwin.workloads.formats.json_rows import LAST_NS, JsonRow
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS, SECOND_NS

MOONCAKE_HASH_BLOCK_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class MooncakeReader(Reader):
    """Reads Mooncake traces.

    ``hash_block_tokens``: tokens that one id stands for (vLLM: ``--timed-trace-chunk-hash-size``).
    ``time_unit_ns``: ns in one unit of the timestamps (``--timed-trace-sec-multiplier`` times 10^9).
    ``*_key``: names of the four keys (``--timed-trace-label-*``).

    Ids are ints of any size or strings; each becomes the number of ids first seen before it in the file, so
    that equal ids stay equal. Rows without ids know only their lengths. ``request_id``, ``session_id`` and
    ``priority`` are kept, other keys are ignored. Every row is a whole prompt: rows of multi-turn variants,
    whose later turns give only the new tokens, are refused (`kvtwin.workloads.formats.mooncake_delta` reads them).
    """

    name: ClassVar[str] = "mooncake"

    hash_block_tokens: int = MOONCAKE_HASH_BLOCK_TOKENS
    time_unit_ns: int = MILLISECOND_NS
    timestamp_key: str = "timestamp"
    input_length_key: str = "input_length"
    output_length_key: str = "output_length"
    hash_ids_key: str = "hash_ids"

    @property
    def is_given_units(self) -> bool:
        """Whether a setting differs from Mooncake's own."""
        return replace(self, skip_bad_lines=False) != type(self)()

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset((self.timestamp_key, self.input_length_key, self.output_length_key))

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        # Bailian's rows have Mooncake's keys and others; their units are given where somebody reads them as Mooncake's.
        is_bailian = bool(first_rows) and "chat_id" in first_rows[0].values and not self.is_given_units
        return super().recognises(first_rows) and not is_bailian

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        dense_ids: dict[int | str, int] = {}
        for index, row in enumerate(rows):
            with rows.bad_lines:
                self._refuse_variants(row)
                prompt_tokens = row.integer(self.input_length_key, minimum=1)
                names = self._hash_ids(row, prompt_tokens)
                hash_ids = None if names is None else [dense_ids.setdefault(name, len(dense_ids)) for name in names]
                yield RequestRecord(
                    request_id=row.text("request_id") if "request_id" in row.values else str(index),
                    arrival_ns=row.time_ns(self.timestamp_key, self.time_unit_ns),
                    prompt_tokens=prompt_tokens,
                    output_tokens=row.integer(self.output_length_key, minimum=0),
                    hash_ids=hash_ids,
                    hash_block_tokens=None if hash_ids is None else self.hash_block_tokens,
                    priority=row.integer("priority") if "priority" in row.values else 0,
                    session=row.text("session_id") if "session_id" in row.values else None,
                    source=row.source,
                )

    def columns(self, rows: Rows) -> Iterator[RecordColumns]:
        dense_ids = DenseIds()
        lengths = self.timestamp_key, self.input_length_key, self.output_length_key
        for path, first, part in json_columns(rows.paths):
            if part.numbers.keys() not in ({*lengths}, {*lengths, self.hash_ids_key}):
                raise NotPlainError
            times, prompt_tokens, output_tokens = (part.numbers[key] for key in lengths)
            if not prompt_tokens.all() or times.max() > LAST_NS // self.time_unit_ns:
                raise NotPlainError
            ids = part.numbers.get(self.hash_ids_key)
            if part.list_key != (None if ids is None else self.hash_ids_key):
                raise NotPlainError
            if ids is not None and (part.lengths != -(-prompt_tokens // self.hash_block_tokens)).any():
                raise NotPlainError
            yield RecordColumns(
                path=path,
                line_of_row=part.line - first,
                rows=np.arange(first, first + len(times)),
                arrival_ns=times * self.time_unit_ns,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                hash_ids=None if ids is None else dense_ids.of(ids),
                num_ids=None if ids is None else part.lengths,
                hash_block_tokens=None if ids is None else self.hash_block_tokens,
            )

    def _refuse_variants(self, row: JsonRow) -> None:
        values = row.values
        if "dependencies" in values:
            raise row.error("dependencies", "a row of Dynamo's agentic Mooncake: read it with --format dynamo-agentic")
        if "delay" in values or self.timestamp_key not in values:
            raise row.error(
                "delay" if "delay" in values else self.timestamp_key,
                f"{'found' if 'delay' in values else 'missing'}, as in multi-turn files whose later turns give only "
                "their new tokens: read it with --format mooncake-delta",
            )
        if "chat_id" in values and (self.hash_block_tokens, self.time_unit_ns) != (16, SECOND_NS):
            raise row.error(
                "chat_id",
                "a row of a Qwen-Bailian trace, which counts seconds and 16-token ids: read it with --format bailian",
            )

    def _hash_ids(self, row: JsonRow, prompt_tokens: int) -> list[int | str] | None:
        key = self.hash_ids_key
        if row.values.get(key) is None:
            return None
        ids = row.names(key)
        expected = -(-prompt_tokens // self.hash_block_tokens)
        if len(ids) != expected:
            quotient = f"ceil({prompt_tokens}/{self.hash_block_tokens})"
            message = f"expected {quotient} = {expected} ids, got {len(ids)}"
            if len(ids) == -(-prompt_tokens // MOONCAKE_HASH_BLOCK_TOKENS):
                message += (
                    f" = ceil({prompt_tokens}/{MOONCAKE_HASH_BLOCK_TOKENS}): this looks like a "
                    f"Mooncake trace, read it with --timed-trace-chunk-hash-size {MOONCAKE_HASH_BLOCK_TOKENS}"
                )
            raise row.error(key, message)
        return ids

    def doubt(self, num_requests: int, span_ns: int) -> str | None:
        """Milliseconds read as seconds stretch an hour of trace to weeks with minutes between requests."""
        span_s = span_ns / SECOND_NS
        if self.time_unit_ns != SECOND_NS or span_s < 86_400 or span_s < 60 * num_requests:
            return None
        return (
            f"the trace spans {span_s / 86_400:.1f} days, {span_s / num_requests:.0f} s between requests: "
            "its timestamps may be milliseconds, as Mooncake's are (--timed-trace-sec-multiplier 0.001)"
        )
