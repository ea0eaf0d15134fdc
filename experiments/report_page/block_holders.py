"""Who holds each block of the pool, and whose tokens are in it, at the steps of a film."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtwin.experiments.records.event_file import num_warm_up_steps, read_events
from kvtwin.experiments.records.reader import Run
from kvtwin.sim.block_changes import BlockChange

_COLUMNS = ("preempted", "finished", "block_changes", "blocks", "table_requests", "table_positions", "table_blocks")


@dataclass
class BlockHolders:
    """The pool after the events of a step."""

    references: dict[int, int] = field(default_factory=dict)
    """By block, where there are any: requests that hold it, and pins of sessions."""
    holders: dict[int, dict[str, None]] = field(default_factory=dict)
    """By block the requests that have it in a table, in the order in which they came to it."""
    content: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By block the request that last filled it, and where the block stood in that request's table."""
    touched: set[int] = field(default_factory=set)
    """Blocks of which something changed; whoever looks at the state empties it."""
    _tables: dict[str, list[int]] = field(default_factory=dict)

    def apply(self, row: dict[str, list[int] | list[str]]) -> None:
        """What happened up to the next step, as ``events.parquet`` has it."""
        for change, block in zip(row["block_changes"], row["blocks"], strict=True):
            self.touched.add(block)
            if change == BlockChange.TAKEN:
                self.content.pop(block, None)
            if change in (BlockChange.TAKEN, BlockChange.HIT):
                self.references[block] = self.references.get(block, 0) + 1
            elif change == BlockChange.FREED:
                self.references[block] -= 1
                if not self.references[block]:
                    del self.references[block]
        for request in (*row["finished"], *row["preempted"]):
            for block in self._tables.pop(request, ()):
                self._let_go(request, block)
        entries = zip(row["table_requests"], row["table_positions"], row["table_blocks"], strict=True)
        for request, position, block in entries:
            self.touched.add(block)
            if position < 0:
                self._tables[request].remove(block)
                self._let_go(request, block)
                continue
            self._tables.setdefault(request, []).append(block)
            self.holders.setdefault(block, {})[request] = None
            self.content.setdefault(block, (request, position))

    def _let_go(self, request: str, block: int) -> None:
        self.touched.add(block)
        held = self.holders[block]
        held.pop(request, None)
        if not held:
            del self.holders[block]


def block_holders(run: Run) -> Iterator[tuple[int, BlockHolders]]:
    """Every step's number, and the same object as it is when the step was scheduled. UserError: no events."""
    state, step = BlockHolders(), -num_warm_up_steps(run)
    for batch in read_events(run, _COLUMNS, with_warm_up=True):
        for values in zip(*batch.values(), strict=True):
            state.apply(dict(zip(_COLUMNS, values, strict=True)))
            yield step, state
            step += 1


class FilmHolders(NamedTuple):
    """What films show of the holders."""

    changes: list[dict[int, list[int]] | None]
    """Per film and step what changed since the film's step before: for each block five numbers and more, one block
    after another. The block; its references; the request that filled it, or -1; the block's place in that request's
    table; how many requests hold it; these requests. None: the film would need too many numbers."""
    pinned: dict[int, list[int]]
    """By step the blocks that only sessions hold, for their next turn."""


def film_holders(
    run: Run, overview: list[int], close: list[int], request_index: Mapping[str, int], most_numbers: int
) -> FilmHolders:
    """For a film of the steps ``overview`` and one of ``close``. UserError: the run has no events."""
    films = [_FilmHolders(set(steps), request_index, most_numbers) for steps in (overview, close)]
    pinned = {}
    has_pins = run.configuration["engine"]["retention"] != "lru"
    for step, state in block_holders(run):
        for film in films:
            film.dirty |= state.touched
            if step in film.steps:
                film.note(step, state)
        state.touched.clear()
        if not has_pins and all(film.has_too_many or step >= film.last for film in films):
            break
        if has_pins and any(step in film.steps for film in films):
            pinned[step] = [block for block in state.references if block not in state.holders]
    return FilmHolders([None if film.has_too_many else film.changes for film in films], pinned)


@dataclass
class _FilmHolders:
    steps: set[int]
    request_index: Mapping[str, int]
    most_numbers: int
    changes: dict[int, list[int]] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    num_numbers: int = 0

    @property
    def last(self) -> int:
        """The step after which nothing is looked for."""
        return max(self.steps, default=-1)

    @property
    def has_too_many(self) -> bool:
        return self.num_numbers > self.most_numbers

    def note(self, step: int, state: BlockHolders) -> None:
        numbers: list[int] = []
        for block in sorted(self.dirty) if not self.has_too_many else ():
            request, position = state.content.get(block, ("", -1))
            holders = [self.request_index.get(name, -1) for name in state.holders.get(block, ())]
            numbers += [block, state.references.get(block, 0), self.request_index.get(request, -1), position]
            numbers += [len(holders), *holders]
        self.dirty.clear()
        self.num_numbers += len(numbers)
        self.changes[step] = numbers
