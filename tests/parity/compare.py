"""Compare two logs record by record, every field of every step."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MISSING = "(absent)"


@dataclass(frozen=True)
class Difference:
    """One field of one step that differs."""

    step: Any
    field: str
    theirs: Any
    ours: Any

    def __str__(self) -> str:
        return f"step {self.step} {self.field}\n    vLLM   {_short(self.theirs)}\n    kvtwin {_short(self.ours)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 400 else text[:400] + "..."


def compare(theirs: Iterable[dict[str, Any]], ours: Iterable[dict[str, Any]]) -> Iterator[tuple[Any, list[Difference]]]:
    """For each step of either log, its number and the fields that differ."""
    for their_record, our_record in itertools.zip_longest(theirs, ours):
        if their_record is None or our_record is None:
            record = their_record or our_record
            yield (
                record["step"],
                [Difference(record["step"], "record", their_record and "present", our_record and "present")],
            )
            continue
        fields = sorted(their_record.keys() | our_record.keys())
        step = their_record["step"]
        yield (
            step,
            [
                Difference(step, field, their_record.get(field, MISSING), our_record.get(field, MISSING))
                for field in fields
                if their_record.get(field, MISSING) != our_record.get(field, MISSING)
            ],
        )
