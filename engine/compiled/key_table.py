"""From key to block: an open-addressing hash table in an array (probing in equal strides, deletion by shifting back).

A place holds the oldest block that has a key, or 0; the key itself is the block's. The table is at least twice as long
as there are blocks, a power of two, and the stride is odd, so that probing always ends.

What takes time is not the search but waiting for the memory where it begins. Keys of a prompt are a fixed step apart,
so places that only differ in the key's bits 5 to 7 lie side by side, eight in a line of the processor's cache. The
stride leaves that line: what finds its place taken does not have to pass its seven neighbours.
"""

from __future__ import annotations

from kvtwin.engine.compiled.arrays import PoolArrays
from kvtwin.engine.compiled.marks import compilable

_EMPTY = 0
_HASH_BITS = 32
_MULTIPLIER = 0x61C88647  # 2**32 divided by the golden ratio squared; the product stays below 2**63
_LOW = 0xFFFFFFFF
_STRIDE = 9
_STRIDES = 0x38E38E39
"""The inverse of ``_STRIDE`` in 32 bits: a distance times this is the number of strides."""


def table_length(num_blocks: int) -> int:
    """Places that a pool of ``num_blocks`` needs."""
    return 1 << (2 * num_blocks - 1).bit_length()


@compilable
def home_of(key: int, mask: int) -> int:
    """The place where the search for ``key`` begins."""
    line = (key >> 8 << 5) | (key & 31)
    folded = (line ^ (line >> _HASH_BITS)) & _LOW
    product = folded * _MULTIPLIER & _LOW
    return (((product ^ (product >> 15)) << 3) | ((key >> 5) & 7)) & mask


@compilable
def _strides(start: int, place: int, mask: int) -> int:
    """Steps of a search from one place to another."""
    return ((place - start) & mask) * _STRIDES & mask


@compilable
def find(pool: PoolArrays, key: int) -> int:
    """The oldest block that caches ``key``; 0 if there is none."""
    table, keys = pool.table, pool.keys
    mask = len(table) - 1
    place = home_of(key, mask)
    block = table[place]
    while block != _EMPTY and keys[block] != key:
        place = (place + _STRIDE) & mask
        block = table[place]
    return block


@compilable
def place_of(pool: PoolArrays, key: int) -> int:
    """The place that holds ``key``, or the empty one where it belongs."""
    table, keys = pool.table, pool.keys
    mask = len(table) - 1
    place = home_of(key, mask)
    while table[place] != _EMPTY and keys[table[place]] != key:
        place = (place + _STRIDE) & mask
    return place


@compilable
def clear_place(pool: PoolArrays, place: int) -> None:
    """Empty ``place``; entries behind it that were pushed past their home move up."""
    table, keys = pool.table, pool.keys
    mask = len(table) - 1
    hole = place
    block = table[(place + _STRIDE) & mask]
    place = (place + _STRIDE) & mask
    while block != _EMPTY:
        home = home_of(keys[block], mask)
        if _strides(home, place, mask) >= _strides(hole, place, mask):
            table[hole] = block
            hole = place
        place = (place + _STRIDE) & mask
        block = table[place]
    table[hole] = _EMPTY
