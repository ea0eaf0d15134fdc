"""Where the loop's arrays lie: made, made larger, and shown to machine code or to Python."""

from __future__ import annotations

from array import array
from typing import Any

from kvtwin.engine.block_pool import BlockPool
from kvtwin.engine.compiled.entry_points import table_of
from kvtwin.engine.compiled.loop.state import COLUMNS, NUM_NUMBERS, NUM_SETTINGS, LoopArrays


class LoopMemory:
    """The memory of ``LoopArrays`` beside a pool's, by name, each an ``array``; tables row by row."""

    def __init__(self, pool: BlockPool, max_running: int, costs: array[float]) -> None:
        self._pool = pool
        self._arrays: dict[str, array[Any]] = {"costs": costs}
        self._table: array[int] | None = None
        for name, length in {
            "settings": NUM_SETTINGS,
            "numbers": NUM_NUMBERS,
            "requests": 64,
            "keys": 4096,
            "tables": 4096,
            "running": max_running,
            "passed_over": 64,
            "ended": 64,
            "lora_holders": 1,
            "phantoms": pool.num_blocks,
            "lost_keys": pool.num_blocks,
            "flights": 2,
            "batches": 2 * max_running,
            "step_rows": 4096,
            "run_rows": 4096,
            "log": 1024,
            "latencies": 4096 + max_running,
            "seconds": 4096,
            "key_changes": 1,
            "first_tokens": 64,
            "arrivals": 1,
            "questions": 1,
            "question_runs": 1,
            "answers": 1,
        }.items():
            self.resize(name, length)

    def __getitem__(self, name: str) -> array[Any]:
        return self._arrays[name]

    def share(self, name: str, numbers: array[int]) -> None:
        """Let an array be ``numbers``, which others have too; they must not grow meanwhile."""
        self._arrays[name] = numbers
        self._table = None

    def resize(self, name: str, length: int) -> None:
        """Make an array ``length`` long (a table: so many rows), keeping what fits; what is added is 0."""
        num_items = length * COLUMNS.get(name, 1)
        old = self._arrays.get(name, array("q"))
        new = self._arrays[name] = array("q", [0]) * num_items
        new[: len(old)] = old[:num_items]
        self._table = None

    def num_rows(self, name: str) -> int:
        """How long an array is, a table in rows."""
        return len(self._arrays[name]) // COLUMNS.get(name, 1)

    def table(self) -> array[int]:
        """The pool's addresses and lengths, then those of the arrays in the order of ``LoopArrays``."""
        if self._table is None:
            self._table = table_of([*self._pool.arrays, *(self._arrays[name] for name in LoopArrays._fields[1:])])
        return self._table

    def views(self) -> LoopArrays:
        """The arrays for Python."""
        import numpy as np

        def view(name: str) -> Any:
            memory = self._arrays[name]
            numbers = np.frombuffer(memory, dtype=np.float64 if memory.typecode == "d" else np.int64)
            return numbers.reshape(-1, COLUMNS[name]) if name in COLUMNS else numbers

        return LoopArrays(self._pool.arrays, *(view(name) for name in LoopArrays._fields[1:]))
