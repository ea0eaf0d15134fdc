"""What ``PoolArrays`` and ``LoopArrays`` are to numba: the address of a table, whose arrays are their attributes.

Imported only to compile.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from kvtwin.engine.compiled.arrays import PoolArrays
from kvtwin.engine.compiled.loop.state import COLUMNS, LoopArrays

_numba: Any = import_module("numba")
_extending: Any = import_module("numba.extending")
_ir: Any = import_module("llvmlite.ir")
_types, _carray, _jitable = _numba.types, _numba.carray, _extending.register_jitable


_Type: Any = _types.Type


def _cast(to: Any) -> Callable[[Any], Any]:
    """An intrinsic that takes the 64 bits of an address for something else."""

    def cast(_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = context.get_value_type(signature.return_type)
            return builder.inttoptr(arguments[0], kind) if isinstance(kind, _ir.PointerType) else arguments[0]

        return to(address), generate

    function: Callable[[Any], Any] = _extending.intrinsic(cast)
    return function


class _TableType(_Type):  # type: ignore[misc]
    """The address of a table."""


class _PoolType(_TableType):
    """``PoolArrays``."""


class _LoopType(_TableType):
    """``LoopArrays``."""


class _AddressModel(_extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _ir.IntType(64))


for _kind in (_PoolType, _LoopType):
    _extending.register_model(_kind)(_AddressModel)

_integers, _floats, _address = (
    _cast(_types.CPointer(_types.int64)),
    _cast(_types.CPointer(_types.float64)),
    _cast(_types.int64),
)
pool_at = _cast(_PoolType("PoolArrays"))
"""``PoolArrays`` from the address of their table."""

loop_at = _cast(_LoopType("LoopArrays"))
"""``LoopArrays`` from the address of their table."""


@_jitable  # type: ignore[untyped-decorator]
def array_at(address: Any, length: Any) -> Any:
    """The ints at an address."""
    return _carray(_integers(address), (length,))


def _attribute(kind: Any, name: str, index: int) -> None:
    """Let the attribute ``name`` of ``kind`` be array number ``index`` of its table."""
    num_columns = COLUMNS.get(name, 0)
    pointer = _floats if name == "costs" else _integers

    @_extending.overload_attribute(kind, name)  # type: ignore[untyped-decorator]
    def attribute(_owner: Any) -> Any:
        def get(_owner: Any) -> Any:
            table = array_at(_address(_owner), 2 * index + 2)
            return _carray(pointer(table[2 * index]), (table[2 * index + 1],))

        def get_table(_owner: Any) -> Any:
            table = array_at(_address(_owner), 2 * index + 2)
            return _carray(pointer(table[2 * index]), (table[2 * index + 1] // num_columns, num_columns))

        return get_table if num_columns else get


for _index, _name in enumerate(PoolArrays._fields):
    _attribute(_PoolType, _name, _index)
for _index, _name in enumerate(LoopArrays._fields[1:], len(PoolArrays._fields)):
    _attribute(_LoopType, _name, _index)


@_extending.overload_attribute(_LoopType, "pool")  # type: ignore[untyped-decorator]
def _pool(_loop: Any) -> Any:
    def get(_loop: Any) -> Any:
        return pool_at(_address(_loop))

    return get
