"""The Qwen-Bailian traces: chats whose turns name their parents.

``{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132, "type": "text",
"turn": 2, "hash_ids": [1089, ...]}``: seconds, and one chained id per started 16 tokens of the whole prompt. Source:
https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from kvtwin.workloads.formats.json_rows import shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import Predecessor, RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_BLOCK_TOKENS = 16
_ROOT = -1


@dataclass(frozen=True)
class BailianReader(Reader):
    """Reads rows as requests: ``chat_id`` is a request's, and a session is a chain of parents.

    A later turn arrives at its timestamp, but not before its parent was answered. A parent that is not in the file
    (the traces are samples) counts as none.
    """

    name: ClassVar[str] = "bailian"

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"))

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        dense_ids: dict[int | str, int] = {}
        sessions: dict[int, str | None] = {}
        for row in rows:
            with rows.bad_lines:
                chat, parent = row.integer("chat_id", minimum=0), row.integer("parent_chat_id", minimum=_ROOT)
                if chat in sessions:
                    raise row.error("chat_id", f"expected a new id, got {shown(chat)} again")
                prompt_tokens = row.integer("input_length", minimum=1)
                record = RequestRecord(
                    request_id=str(chat),
                    arrival_ns=row.time_ns("timestamp", SECOND_NS),
                    prompt_tokens=prompt_tokens,
                    output_tokens=row.integer("output_length", minimum=0),
                    hash_ids=[
                        dense_ids.setdefault(name, len(dense_ids))
                        for name in row.block_names("hash_ids", prompt_tokens, _BLOCK_TOKENS)
                    ],
                    hash_block_tokens=_BLOCK_TOKENS,
                    session=sessions.get(parent, str(chat)),
                    after=(Predecessor(request_id=str(parent), delay_ns=0),) if parent in sessions else (),
                    source=row.source,
                )
                sessions[chat] = record.session
                yield record
