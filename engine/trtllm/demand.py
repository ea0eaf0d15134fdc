"""What the requests of one step ask of the blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvtwin.engine.request import Request
from kvtwin.engine.token_marks import TokenMarks
from kvtwin.engine.trtllm.block import Block, Edge
from kvtwin.engine.trtllm.block_manager import BlockManager, CachedSequence


class StepDemand:
    """The :class:`~kvtwin.engine.trtllm.capacity.CapacityDemand` of one step.

    Blocks that a prompt could reuse are not subtracted: its whole need has to fit.
    """

    def __init__(
        self,
        cache: BlockManager,
        sequences: Mapping[Request, CachedSequence],
        marks: Mapping[Request, TokenMarks],
        in_context: set[Request],
        *,
        defers: bool,
    ) -> None:
        self._cache = cache
        self._sequences = sequences
        self._marks = marks
        self._in_context = in_context
        self._defers = defers and cache.reuses
        self._contributed: set[tuple[Block, Edge]] = set()
        self._released: Counter[Block] = Counter()

    @property
    def num_free_blocks(self) -> int:
        return self._cache.num_free_blocks

    def _num_held(self, request: Request) -> int:
        sequence = self._sequences.get(request)
        return len(sequence.blocks) if sequence else 0

    def to_completion(self, request: Request) -> int:
        return max(0, self._cache.num_blocks_for(request.max_total_tokens) - self._num_held(request))

    def for_step(self, request: Request) -> int:
        num_tokens = request.num_tokens + request.num_drafts
        return max(0, self._cache.num_blocks_for(num_tokens) - self._num_held(request))

    def released_by(self, request: Request) -> int:
        num_freed = 0
        for block in self._sequences[request].blocks:
            self._released[block] += 1
            num_freed += self._released[block] == block.refs
        return num_freed

    def must_defer(self, request: Request) -> bool:
        return self._defers and self._first_missing(request) in self._contributed

    def chosen(self, request: Request) -> None:
        if self._defers and (request in self._in_context or request not in self._sequences):
            first = self._first_missing(request)
            if first:
                self._contributed.add(first)

    def _first_missing(self, request: Request) -> tuple[Block, Edge] | None:
        found = self._cache.lookup(self._marks[request], request.num_tokens)
        return (found.parent, found.missing) if found.missing else None
