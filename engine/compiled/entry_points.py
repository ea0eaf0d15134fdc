"""What Python may call of the machine code. Everything is an int there: a number, or the address of an array.

A *table* is an array with two ints per array of a ``PoolArrays`` or ``LoopArrays``: its address and its length. So a
call, and each call within the machine code, hands over one address and not twenty arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from kvtwin.engine.compiled import pool_functions
from kvtwin.engine.compiled.loop import ahead as loop_ahead
from kvtwin.engine.compiled.loop import run as loop_run
from kvtwin.engine.compiled.loop import take as loop_take

NUM_PARAMETERS = {"allocate": 4, "touch": 3, "free": 3, "register": 4, "find_leading": 4, "find_all": 4}
NUM_PARAMETERS |= {"run": 3, "take": 8, "answer": 2}
"""Of each entry point."""


def table_of(arrays: Iterable[Any]) -> array[int]:
    """The table of some ``array`` objects, which must not grow while it is used."""
    return array("q", [number for one in arrays for number in one.buffer_info()])


def entry_points() -> dict[str, Callable[..., int]]:
    """The functions of ``NUM_PARAMETERS``, for numba to compile."""
    types: Any = import_module("kvtwin.engine.compiled.numba_types")
    pool_at, loop_at, array_at = types.pool_at, types.loop_at, types.array_at

    def allocate(pool: int, count: int, blocks: int, lost_keys: int) -> int:
        pool_functions.allocate(pool_at(pool), count, array_at(blocks, count), 0, array_at(lost_keys, count))
        return 0

    def touch(pool: int, blocks: int, count: int) -> int:
        pool_functions.touch(pool_at(pool), array_at(blocks, count), 0, count)
        return 0

    def free(pool: int, blocks: int, count: int) -> int:
        return pool_functions.free(pool_at(pool), array_at(blocks, count), 0, count, 1)

    def register(pool: int, blocks: int, keys: int, count: int) -> int:
        pool_functions.register(pool_at(pool), array_at(blocks, count), array_at(keys, count), 0, count)
        return 0

    def find_leading(pool: int, keys: int, count: int, blocks: int) -> int:
        return pool_functions.find_leading(pool_at(pool), array_at(keys, count), 0, count, array_at(blocks, count))

    def find_all(pool: int, keys: int, count: int, blocks: int) -> int:
        pool_functions.find_all(pool_at(pool), array_at(keys, count), count, array_at(blocks, count))
        return 0

    def run(loop: int, now_ns: int, until_ns: int) -> int:
        return loop_run.run(loop_at(loop), now_ns, until_ns)

    def take(
        loop: int, request: int, given: int, count: int, place: int, room: int, private_key: int, arrives_ns: int
    ) -> int:
        loop_take.take(loop_at(loop), request, array_at(given, count), place, room, private_key, arrives_ns)
        return 0

    def answer(loop: int, until_ns: int) -> int:
        loop_ahead.answer(loop_at(loop), until_ns)
        return 0

    found = (allocate, touch, free, register, find_leading, find_all, run, take, answer)
    return {function.__name__: function for function in found}
