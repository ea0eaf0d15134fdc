"""What Python may call of the machine code. Everything is an int there: a number, or the address of an array.

A *table* is an array with two ints per array of a ``PoolArrays`` or the like: its address and its length. It is made
once, so that a call hands over one address and not twenty.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from kvtwin.engine.compiled import pool_functions
from kvtwin.engine.compiled.arrays import PoolArrays

NUM_PARAMETERS = {"allocate": 4, "touch": 3, "free": 3, "register": 4, "find_leading": 4, "find_all": 4}
"""Of each entry point."""


def table_of(arrays: Iterable[Any]) -> array[int]:
    """The table of some ``array`` objects, which must not grow while it is used."""
    return array("q", [number for one in arrays for number in one.buffer_info()])


def entry_points() -> dict[str, Callable[..., int]]:
    """The functions of ``NUM_PARAMETERS``, for numba to compile."""
    numba: Any = import_module("numba")
    carray, jitable = numba.carray, numba.extending.register_jitable
    integers = numba.types.CPointer(numba.types.int64)

    @numba.extending.intrinsic  # type: ignore[untyped-decorator]
    def pointer(_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return integers(address), generate

    @jitable  # type: ignore[untyped-decorator]
    def array_at(address: Any, length: Any) -> Any:
        return carray(pointer(address), (length,))

    @jitable  # type: ignore[untyped-decorator]
    def pool_at(address: Any) -> Any:
        table = array_at(address, 16)
        return PoolArrays(
            array_at(table[0], table[1]),
            array_at(table[2], table[3]),
            array_at(table[4], table[5]),
            array_at(table[6], table[7]),
            array_at(table[8], table[9]),
            array_at(table[10], table[11]),
            array_at(table[12], table[13]),
            array_at(table[14], table[15]),
        )

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

    found = (allocate, touch, free, register, find_leading, find_all)
    return {function.__name__: function for function in found}
