"""Where a prefill chunk has to end, so that states worth caching are there (specification, section 10.11)."""

from __future__ import annotations

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.request import Request


class StateChunks:
    """Cuts the chunks of models whose states are cached: a state is only kept at the end of a chunk."""

    def __init__(self, config: EngineConfig) -> None:
        self._unit_tokens = min(spec.block_size for spec in config.group_specs)
        self._token_budget = config.token_budget

    def cut(self, request: Request, start: int, num_new_tokens: int, chunk_limit: int) -> int:
        """How many of ``num_new_tokens`` tokens after the first ``start`` fit in one step; 0 if none.

        A chunk ends with the last known token, at the junction, at the last block boundary before the last known
        token, or else at any block boundary; one that begins inside a block ends with the block. A chunk that reaches
        none of them waits for a step with more room, unless no step ever has room for a whole block.
        """
        num_tokens, unit = request.num_tokens, self._unit_tokens
        if start >= num_tokens - 1:
            return num_new_tokens
        end = start + num_new_tokens
        last = (num_tokens - 1) // unit * unit
        stops = [stop for stop in (request.junction_tokens, last) if start < stop <= end]
        if start % unit:
            stops.append(start - start % unit + unit)
        end = min([end, *stops])
        if end < num_tokens and end not in stops:
            boundary = end // unit * unit
            if boundary > start:
                end = boundary
            elif min(chunk_limit or self._token_budget, self._token_budget) >= unit:
                return 0
        return end - start
