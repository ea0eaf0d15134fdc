"""The pool's memory: parallel int arrays, indexed by block id where nothing else is said."""

from __future__ import annotations

from collections.abc import MutableSequence
from typing import NamedTuple

Ints = MutableSequence[int]
"""64-bit ints: an ``array("q")`` for Python, a view of the same memory for machine code."""

NUM_FREE, NUM_EVICTIONS, NUM_HASHED, NUM_KEYS = range(4)
"""Places in ``counts``: free blocks, evictions, blocks with a key, distinct keys."""


class PoolArrays(NamedTuple):
    """The free queue is a ring through a sentinel, whose index is the number of blocks.

    Blocks with an equal key form a ring in order of registration; a block alone points to itself.
    """

    counts: Ints
    ref_counts: Ints
    keys: Ints
    next: Ints
    previous: Ints
    next_same: Ints
    previous_same: Ints
    table: Ints
    """The map from keys to blocks (:mod:`kvtwin.engine.compiled.key_table`)."""
