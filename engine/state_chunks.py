"""Where a prefill chunk has to end, so that states worth caching are there (specification, section 10.11)."""

from __future__ import annotations

from kvtwin.engine.chunks import Candidate, ChunkLimit
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import AdmissionStop
from kvtwin.engine.request import Request


class StateChunks:
    """Cuts the chunks of models whose states are cached: a state is only kept at the end of a chunk."""

    def __init__(self, config: EngineConfig, limit: ChunkLimit) -> None:
        self._block_size = min(spec.block_size for spec in config.group_specs)
        self._token_budget = config.token_budget
        self._limit = limit

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """How many of ``num_new_tokens`` tokens after the first ``start`` fit in one step; 0 if none.

        A chunk ends with the last known token, at the junction, at the last block boundary before the last known
        token, or else at any block boundary; one that begins inside a block ends with the block. A chunk that reaches
        none of them waits for a step with more room, unless no step ever has room for a whole block.
        """
        num_tokens, block_size = request.num_tokens, self._block_size
        if start >= num_tokens - 1 or num_new_tokens <= 0:
            return num_new_tokens
        end = start + num_new_tokens
        last = (num_tokens - 1) // block_size * block_size
        stops = [stop for stop in (request.junction_tokens, last) if start < stop <= end]
        if start % block_size:
            stops.append(start - start % block_size + block_size)
        end = min([end, *stops])
        if end < num_tokens and end not in stops:
            boundary = end // block_size * block_size
            if boundary > start:
                end = boundary
            elif min(self._limit.num_tokens, self._token_budget) >= block_size:
                return 0
        return end - start

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """As far as the last state worth keeping."""
        return self.fit(candidate.request, candidate.hit.num_tokens, num_tokens) or AdmissionStop.STATE


class NoStates:
    """Where no states are cached, chunks end anywhere."""

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """All of them."""
        return num_new_tokens

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """All of them."""
        return num_tokens
