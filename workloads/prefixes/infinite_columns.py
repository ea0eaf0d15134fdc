"""An infinite prefix cache for columns of requests: many at a time, with what :class:`InfiniteCache` would hit."""

from __future__ import annotations

import numpy as np

from kvtwin.workloads.columns import Integers, NotPlainError, RecordColumns

_BEHIND_NOTHING = -1
_UNSEEN = -2


class InfiniteColumns:
    """A prefix cache that never evicts, in blocks of ``block_size`` tokens.

    An id is looked up without the ids before it, which must be the same ones wherever it occurs.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._parents = np.zeros(0, dtype=np.int64)
        """Of each id, the one before it."""
        self._blocks = np.zeros(0, dtype=np.int64)
        """Of each id, the most blocks that any request had of it."""

    def add(self, columns: RecordColumns) -> Integers:
        """Look requests up and store them, one after the other; how many leading full blocks of each were there.

        NotPlainError: an id follows another one than before.
        """
        ids, lengths, id_tokens = columns.hash_ids, columns.num_ids, columns.hash_block_tokens
        assert ids is not None
        assert lengths is not None
        assert id_tokens is not None
        firsts = np.cumsum(lengths) - lengths
        self._check_parents(ids, firsts)
        places = np.arange(len(ids)) - np.repeat(firsts, lengths)
        prompts = np.repeat(columns.prompt_tokens, lengths)
        ends, starts = (np.minimum((places + one) * id_tokens, prompts) // self._block_size for one in (1, 0))
        counts = ends - starts
        known = self._known_before(ids, counts)
        misses = np.flatnonzero(known < counts)
        ids_hit = np.append(misses, len(ids))[np.searchsorted(misses, firsts)]
        in_part = np.where(ids_hit < firsts + lengths, ids_hit, -1)
        ids_hit = np.minimum(ids_hit, firsts + lengths)
        before = np.concatenate(([0], np.cumsum(counts)))
        return before[ids_hit] - before[firsts] + np.where(in_part < 0, 0, known[in_part])

    def _check_parents(self, ids: Integers, firsts: Integers) -> None:
        more = int(ids.max(initial=-1)) + 1 - len(self._parents)
        if more > 0:
            more = max(more, len(self._parents))
            self._parents = np.concatenate((self._parents, np.full(more, _UNSEEN)))
            self._blocks = np.concatenate((self._blocks, np.zeros(more, dtype=np.int64)))
        parents = np.empty_like(ids)
        parents[1:] = ids[:-1]
        parents[firsts] = _BEHIND_NOTHING
        new = self._parents[ids] == _UNSEEN
        self._parents[ids[new]] = parents[new]
        if (self._parents[ids] != parents).any():
            raise NotPlainError

    def _known_before(self, ids: Integers, counts: Integers) -> Integers:
        """Of each id the most blocks that requests before its own had of it."""
        order = np.argsort(ids, kind="stable")
        in_order, counted = ids[order], counts[order]
        is_first = np.diff(in_order, prepend=-1) != 0
        base = np.cumsum(is_first) * (int(counts.max(initial=0)) + int(self._blocks.max(initial=0)) + 1)
        most = np.maximum.accumulate(base + np.maximum(counted, self._blocks[in_order])) - base
        known = np.empty_like(counts)
        known[order] = np.where(is_first, self._blocks[in_order], np.roll(most, 1))
        self._blocks[in_order[np.diff(in_order, append=-1) != 0]] = most[np.diff(in_order, append=-1) != 0]
        return known
