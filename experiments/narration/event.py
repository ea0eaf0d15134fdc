"""What is written down of a request: events, and whose blocks were evicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the request."""

    step: int | None
    """The step that was being decided, or the latest one decided; None before the first."""
    time_ns: int
    kind: str
    facts: dict[str, Any]
    """Plain data: what was counted, in tokens and blocks; requests by id."""


class Prefix(NamedTuple):
    """Whose prefix a key names: its blocks up to this position, in one cache group."""

    request_id: str
    position: int


class Eviction(NamedTuple):
    """What was evicted, in which step, and which request took the block."""

    prefix: Prefix
    step: int
    taken_by: str
