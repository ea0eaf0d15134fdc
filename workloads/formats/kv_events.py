"""Logs of vLLM's KV events: requests are made out from the blocks that were stored.

A batch a line: ``[1764000000.1, [{"type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
"token_ids": [...], "block_size": 16}, {"type": "BlockRemoved", "block_hashes": [1]}], 0]``, or ``{"ts": 0.1, "events":
[...]}`` as `kvtwin replay --kv-events` writes them; older versions of vLLM have lists for events, the name first.
Source: vLLM, ``vllm/distributed/kv_events.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvtwin.workloads.formats.json_rows import JsonRow, is_list, shown
from kvtwin.workloads.formats.reader import Reader
from kvtwin.workloads.formats.rows import Rows
from kvtwin.workloads.request_record import RequestRecord
from kvtwin.workloads.time_units import SECOND_NS

_OLD_FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id")
_LOST = (
    "made out from stored blocks: requests whose blocks were all cached left no trace, nor did the tokens behind the "
    "last full block, so that there are fewer and shorter requests than were served"
)


@dataclass(frozen=True)
class KVEventsReader(Reader):
    """Reads stored blocks as requests. What is stored on top of a request's last block is more of its prompt while
    several blocks come at once, and its output while they come one by one; after an output it is a new request, which
    repeats the old one. A request arrives when its first block was stored.
    """

    name: ClassVar[str] = "vllm-kv-events"
    wall_clock: ClassVar[bool] = True

    @property
    def first_row_names(self) -> frozenset[str]:
        return frozenset(("ts", "events"))

    def recognises(self, first_rows: Sequence[JsonRow]) -> bool:
        values = first_rows[0].values if first_rows else {}
        return super().recognises(first_rows) or {"[0]", "[1]"} <= values.keys()

    def read(self, rows: Rows) -> Iterator[RequestRecord]:
        blocks = _Blocks()
        for row in rows:
            with rows.bad_lines:
                time_key, events_key = ("ts", "events") if "events" in row.values else ("[0]", "[1]")
                time_ns = row.time_ns(time_key, SECOND_NS)
                for event in _events(row, events_key):
                    if event.text("type") == "BlockStored" and not event.values.get("group_idx"):
                        blocks.store(event, time_ns)
        rows.notes[_LOST] = None
        for index, request in enumerate(blocks.requests):
            yield RequestRecord(
                request_id=str(index),
                arrival_ns=request.arrival_ns,
                prompt_tokens=len(request.prompt),
                output_tokens=max(1, len(request.output)),
                token_ids=request.prompt,
                output_token_ids=request.output or None,
                source=request.source,
            )


@dataclass
class _Request:
    arrival_ns: int
    source: str
    prompt: list[int]
    output: list[int] = field(default_factory=list)


class _Blocks:
    """What the stored blocks hold, and the requests that they are of."""

    def __init__(self) -> None:
        self.requests: list[_Request] = []
        self._chains: dict[Any, tuple[Any, list[int]]] = {}
        """Of each block, the one before it and its tokens."""
        self._request_at: dict[Any, _Request] = {}
        """The request that ends with a block, so far."""

    def store(self, event: JsonRow, time_ns: int) -> None:
        """Blocks were stored behind another one, or behind none."""
        hashes, tokens = event.names("block_hashes"), event.integers("token_ids", minimum=0)
        size = event.integer("block_size", minimum=1)
        if len(tokens) != size * len(hashes):
            raise event.error("token_ids", f"expected {size} for each of {len(hashes)} blocks, got {len(tokens)}")
        parent = event.values.get("parent_block_hash")
        request = self._request_at.pop(parent, None)
        if request is None or (request.output and len(hashes) > 1):
            request = _Request(time_ns, event.source, [*self._before(parent), *tokens])
            self.requests.append(request)
        elif len(hashes) > 1:
            request.prompt += tokens
        else:
            request.output += tokens
        for index, name in enumerate(hashes):
            self._chains[name] = (parent, tokens[index * size : (index + 1) * size])
            parent = name
        self._request_at[parent] = request

    def _before(self, block: Any) -> list[int]:
        """The tokens up to the end of a block."""
        parts: list[list[int]] = []
        while block in self._chains and len(parts) < len(self._chains):
            block, tokens = self._chains[block]
            parts.append(tokens)
        return [token for part in reversed(parts) for token in part]


def _events(row: JsonRow, key: str) -> Iterator[JsonRow]:
    events = row.required(key)
    if not is_list(events):
        raise row.error(key, f"expected a list of events, got {shown(events)}")
    for index, event in enumerate(events):
        if is_list(event):
            event = dict(zip(_OLD_FIELDS, event, strict=False))
        if not isinstance(event, dict):
            raise row.error(f"{key}[{index}]", f"expected an event, got {shown(event)}")
        yield JsonRow(f"{row.source}: {key}[{index}]", event)
