"""The block map: what the blocks of the pool hold, frame by frame.

Two films: the whole run, in frames evenly spaced in time, and single steps around the first preemption, else around
the first eviction. Blocks stand in order of their ids, the null block first; where there are many, a cell stands for
several and shows the state that most of them are in. Frames also tell which blocks changed hands since the one before,
as far as a page has room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtwin.experiments.records.event_file import num_warm_up_steps, read_block_changes, read_events
from kvtwin.experiments.records.reader import Run
from kvtwin.experiments.report_page.block_holders import film_holders
from kvtwin.sim.block_changes import BlockChange
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.time_units import SECOND_NS

MOST_CELLS = 8_192
NUM_FRAMES = 200
STEPS_BEFORE, STEPS_AFTER = 20, 79
"""Around the step that is looked at closely."""

MOST_HOLDER_NUMBERS = 400_000
"""Numbers about holders in a film; one that needs more does not have them."""

FREE, CACHED, PRIVATE, SHARED, PINNED, NULL = range(6)
EVICTED, LET_GO = 8, 16
"""Marks that are added to the state of a cell."""

_DIGITS = "0123456789abcdefghijklmnopqrstuv"

_HOLDERS = np.array([1, 1, -1, 0])
"""By how much each `BlockChange` changes the number of a block's holders."""


class PoolState(NamedTuple):
    """The pool when a step was scheduled; arrays have an entry per block, without the null block."""

    step: int
    states: NDArray[np.uint8]
    """`FREE`, `CACHED`, `PRIVATE` or `SHARED`; who knows of pins makes some of them `PINNED`."""
    evicted: NDArray[np.bool_]
    """Was hit-able in the state before, and has been taken since. What became so only since then is not counted."""
    let_go: NDArray[np.bool_]
    """Was held in the state before, and is not any more."""


def block_map(run: Run, request_index: Mapping[str, int]) -> dict[str, Any]:
    """Films, as the page's script reads them, which knows requests by ``request_index``. UserError: no events."""
    num_blocks = run.num_blocks
    blocks_per_cell = -(-num_blocks // MOST_CELLS)
    num_cells = -(-num_blocks // blocks_per_cell)
    happened = _Happened(run)
    overview = _overview_steps(run)
    focus = happened.focus_step()
    close = range(0) if focus is None else range(max(0, focus - STEPS_BEFORE), focus + STEPS_AFTER + 1)
    close = range(close.start, min(close.stop, len(run.steps["end_ns"])))
    frames: dict[int, str] = {}
    # The step before the close ones is needed to tell what changed in the first of them.
    holders = film_holders(run, overview, list(close), request_index, MOST_HOLDER_NUMBERS)
    for state in pool_states(run, sorted({*overview, *close, *range(max(0, close.start - 1), close.start)})):
        state.states[[block - 1 for block in holders.pinned.get(state.step, ())]] = PINNED
        frames[state.step] = _cells(state, blocks_per_cell, has_marks=state.step in close)
    unmarked = {step: _unmarked(frames[step]) if step in close else frames[step] for step in overview}
    fullest = int(np.argmin(run.steps["free_blocks"][overview])) if overview else 0
    films = [_Film("whole run", overview, unmarked, holders.changes[0], fullest).content(run, happened)]
    if focus is not None:
        what = "preemption" if happened.preempted_by[-1] else "eviction"
        name = f"step by step around the first {what}"
        film = _Film(name, list(close), frames, holders.changes[1], focus - close.start, has_marks=True)
        films.append(film.content(run, happened))
    return {
        "num_blocks": num_blocks,
        "num_cells": num_cells,
        "blocks_per_cell": blocks_per_cell,
        "block_tokens": int(run.configuration["engine"]["block_size"]),
        "films": films,
    }


def pool_states(run: Run, wanted: list[int]) -> Iterator[PoolState]:
    """The pool at the ``wanted`` steps, which are in order. UserError: the run has no events."""
    holders = np.zeros(run.num_blocks, dtype=np.int64)
    has_key = np.zeros(run.num_blocks, dtype=bool)
    held_before, key_before = holders > 0, has_key.copy()
    taken = np.zeros(run.num_blocks, dtype=bool)
    left, first_step = iter(wanted), -num_warm_up_steps(run)
    step = next(left, None)
    for changes, blocks, starts in read_block_changes(run):
        at = 0
        while step is not None and step < first_step + len(starts) - 1:
            end = int(starts[step - first_step + 1])
            _apply(changes[at:end], blocks[at:end], holders, has_key, taken)
            states = np.where(holders > 0, np.where(holders > 1, SHARED, PRIVATE), np.where(has_key, CACHED, FREE))
            is_held = holders > 0
            evicted, let_go = taken & key_before, held_before & ~is_held
            yield PoolState(step, states[1:].astype(np.uint8), evicted[1:], let_go[1:])
            held_before, key_before = is_held, has_key.copy()
            taken[:] = False
            at, step = end, next(left, None)
        if step is None:
            return
        _apply(changes[at:], blocks[at:], holders, has_key, taken)
        first_step += len(starts) - 1


def _apply(
    changes: NDArray[Any],
    blocks: NDArray[Any],
    holders: NDArray[np.int64],
    has_key: NDArray[np.bool_],
    taken: NDArray[np.bool_],
) -> None:
    np.add.at(holders, blocks, _HOLDERS[changes])
    is_taken = changes == BlockChange.TAKEN
    sets_key = is_taken | (changes == BlockChange.CACHED)
    has_key[blocks[sets_key]] = ~is_taken[sets_key]  # of several changes to a block the last one counts
    taken[blocks[is_taken]] = True


def _overview_steps(run: Run) -> list[int]:
    """Steps evenly spaced in time."""
    times = run.steps["scheduled_ns"]
    if not len(times):
        return []
    return np.unique(np.searchsorted(times, np.linspace(times[0], times[-1], NUM_FRAMES))).tolist()


def _cells(state: PoolState, blocks_per_cell: int, *, has_marks: bool) -> str:
    """A digit per cell."""
    states = np.append(NULL, state.states)
    evicted, let_go = (np.append(False, marks) for marks in (state.evicted, state.let_go))
    edges = np.arange(0, len(states), blocks_per_cell)
    ranked = (SHARED, PRIVATE, PINNED, CACHED, FREE, NULL)  # of equally many the first
    counts = [np.add.reduceat(states == each, edges, dtype=np.int64) for each in ranked]
    digits = np.array(ranked)[np.argmax(counts, axis=0)]
    if has_marks:
        digits = digits + EVICTED * np.logical_or.reduceat(evicted, edges)
        digits = digits + LET_GO * np.logical_or.reduceat(let_go, edges)
    return "".join(_DIGITS[digit] for digit in digits)


def _unmarked(cells: str) -> str:
    return "".join(str(_DIGITS.index(digit) % EVICTED) for digit in cells)


class _Happened:
    """Preemptions and evictions up to each step, it included."""

    def __init__(self, run: Run) -> None:
        columns: dict[str, list[Any]] = {"preempted": [], "evictions": []}
        for batch in read_events(run, tuple(columns)):
            for name, column in columns.items():
                column += batch[name]
        self.preempted = columns["preempted"]
        """Who was preempted in each step."""
        self.preempted_by = [0, *np.cumsum([len(each) for each in self.preempted]).tolist()]
        self.evicted_by = [0, *np.cumsum(columns["evictions"]).astype(int).tolist()]
        """How many before each step; one more entry than there are steps."""

    def focus_step(self) -> int | None:
        """The step of the first preemption, else of the first eviction; None if there is neither."""
        for counts in (self.preempted_by, self.evicted_by):
            if counts[-1]:
                return int(np.searchsorted(counts, 1)) - 1
        return None


@dataclass(frozen=True)
class _Film:
    name: str
    steps: list[int]
    frames: dict[int, str]
    changes: dict[int, list[int]] | None
    """Of the holders (`film_holders`), or None: there are too many."""
    start: int = 0
    """The frame to be shown first."""
    has_marks: bool = False

    def content(self, run: Run, happened: _Happened) -> dict[str, Any]:
        """As the page's script reads it."""
        first = [self.steps[0], *(step + 1 for step in self.steps[:-1])] if self.steps else []
        frames = [
            {"cells": self.frames[step], "time_s": round(float(run.steps["scheduled_ns"][step]) / SECOND_NS, 6)}
            | ({} if self.changes is None else {"changes": self.changes[step]})
            | _caption(run, happened, since, step)
            for since, step in zip(first, self.steps, strict=True)
        ]
        return {"name": self.name, "frames": frames, "start": self.start, "has_marks": self.has_marks}


def _caption(run: Run, happened: _Happened, first: int, step: int) -> dict[str, str]:
    """What is written above a frame that shows ``step``; the frame before showed the step before ``first``."""
    rows, usable = run.steps, run.num_blocks - 1
    used = usable - int(rows["free_blocks"][step])
    evictions = happened.evicted_by[step + 1] - happened.evicted_by[first]
    text = (
        f"{rows['scheduled_ns'][step] / SECOND_NS:,.3f} s, step {step:,}: {used:,} of {number_of(usable, 'block')} "
        f"in use ({used / usable:.1%}), {number_of(int(rows['running'][step]), 'request')} running, "
        f"{rows['waiting'][step]:,} waiting. "
        f"{number_of(evictions, 'block')} evicted{'' if first == step else ' since the previous frame'}."
    )
    preempted = happened.preempted_by[step + 1] - happened.preempted_by[first]
    if not preempted:
        return {"text": text}
    who = f": {', '.join(happened.preempted[step])}" if first == step else ""
    return {"text": text, "preempted": f"{preempted:,} preempted{who}."}
