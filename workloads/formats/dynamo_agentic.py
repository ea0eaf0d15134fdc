"""Dynamo's agentic Mooncake: requests with explicit dependencies.

A header ``{"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 4, "hash_id_scope": "local"}``, then rows
``{"request_id": "b", "play_id": "p", "session_id": "child", "model": "m", "input_length": 4, "output_length": 2,
"hash_ids": [302], "not_before_ms": 0, "dependencies": [{"request_id": "a", "trigger": "dispatch", "delay_ms": 5,
"relation": "spawn"}]}``. Source: https://github.com/ai-dynamo/dynamo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.nominal_arrivals import NominalArrivals
from kvtwin.workloads.request_record import Predecessor, RequestRecord
from kvtwin.workloads.time_units import MILLISECOND_NS

_SCHEMA, _VERSION = "dynamo.agentic_mooncake", 2


@dataclass(frozen=True)
class DynamoAgenticReader(Reader):
    """Reads version 2. A request waits for its ``dependencies``, and in any case until ``not_before_ms``.

    Rows are whole prompts. With ``hash_id_scope`` ``local`` ids belong to a play (an agent's session and those of its
    sub-agents), with ``global`` to the file; those of different models are told apart.
    """

    name: ClassVar[str] = "dynamo-agentic"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("schema", "version", "block_size", "hash_id_scope"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        parser = _Parser()
        for row in rows:
            with rows.bad_lines:
                if "schema" in row.values:
                    parser.start(row)
                else:
                    yield parser.record(row)


class _Parser:
    """Reads rows below a header; ids of all files with ``global`` scope are the same."""

    def __init__(self) -> None:
        self._block_tokens: int | None = None
        self._is_local = False
        self._dense_ids: dict[tuple[str, str, int | str], int] = {}
        self._request_ids = set[str]()
        self._arrivals = NominalArrivals()

    def start(self, header: JsonRow) -> None:
        """The first row of a file."""
        if (schema := header.text("schema")) != _SCHEMA:
            raise header.error("schema", f"expected {_SCHEMA!r}, got {shown(schema)}")
        if (version := header.integer("version")) != _VERSION:
            raise header.error("version", f"expected {_VERSION}, got {version}")
        if (scope := header.text("hash_id_scope")) not in ("local", "global"):
            raise header.error("hash_id_scope", f"expected 'local' or 'global', got {shown(scope)}")
        self._block_tokens = header.integer("block_size", minimum=1)
        self._is_local = scope == "local"

    def record(self, row: JsonRow) -> RequestRecord:
        """The request of a row."""
        if self._block_tokens is None:
            raise row.error("schema", "expected this key, but it is missing")
        play = row.text("play_id")
        request_id = row.text("request_id")
        if request_id in self._request_ids:
            raise row.error("request_id", f"expected a new id, got {shown(request_id)} again")
        prompt_tokens = row.integer("input_length", minimum=1)
        namespace = (play if self._is_local else "", row.text("model"))
        record = RequestRecord(
            request_id=request_id,
            arrival_ns=0,
            prompt_tokens=prompt_tokens,
            output_tokens=row.integer("output_length", minimum=0),
            hash_ids=[
                self._dense_ids.setdefault((*namespace, name), len(self._dense_ids))
                for name in row.block_names("hash_ids", prompt_tokens, self._block_tokens)
            ],
            hash_block_tokens=self._block_tokens,
            session=f"{play}/{row.text('session_id')}",
            after=tuple(_predecessor(dependency, self._request_ids) for dependency in row.objects("dependencies")),
            source=row.source,
        )
        record.arrival_ns = self._arrivals.add(record, row.time_ns("not_before_ms", MILLISECOND_NS))
        self._request_ids.add(request_id)
        return record


def _predecessor(row: JsonRow, request_ids: set[str]) -> Predecessor:
    trigger, request_id = row.text("trigger"), row.text("request_id")
    if trigger not in ("dispatch", "completion"):
        raise row.error("trigger", f"expected 'dispatch' or 'completion', got {shown(trigger)}")
    if request_id not in request_ids:
        raise row.error("request_id", f"expected a request of an earlier line, got {shown(request_id)}")
    delay_ns = row.time_ns("delay_ms", MILLISECOND_NS)
    return Predecessor(request_id=request_id, delay_ns=delay_ns, dispatched=trigger == "dispatch")
