"""How many tokens a request computes in one step: what cuts its chunk down, in the order of spec section 5."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import AdmissionStop, Step
from kvtwin.engine.hit import Hit
from kvtwin.engine.request import Request


class Candidate(NamedTuple):
    """The request to be admitted next, and what the step being decided has for it."""

    request: Request
    hit: Hit
    step: Step
    budget_left: int
    """Tokens that it may have."""


Cutter = Callable[[Candidate, int], int | AdmissionStop]
"""Cuts the tokens that a candidate would compute down to what one rule allows, or says why it is not admitted."""


def cut_to_budget(candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
    """As much as the step has left."""
    return min(num_tokens, candidate.budget_left)


def wait_for_budget(candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
    """All or nothing: without chunked prefill."""
    return num_tokens if num_tokens <= candidate.budget_left else AdmissionStop.BUDGET


class ChunkLimit:
    """Most tokens that one request may prefill in a step: ``long_prefill_token_threshold``."""

    def __init__(self, config: EngineConfig) -> None:
        self._threshold = config.long_prefill_token_threshold
        self._max_batched_tokens = config.max_num_batched_tokens
        self._is_adaptive = config.long_prefill_token_threshold_adaptive
        self.num_tokens = sys.maxsize

    def start_step(self, num_requests: int) -> None:
        """A request that is alone has no limit."""
        self.num_tokens = sys.maxsize
        if self._threshold and num_requests > 1:
            shared = self._max_batched_tokens // num_requests if self._is_adaptive else 0
            self.num_tokens = max(self._threshold, shared)

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """No more than the limit."""
        return min(num_tokens, self.num_tokens)


class StateChunks:
    """Cuts the chunks of models whose states are cached (spec section 10): a state is only kept at the end of a chunk,

    and there shall be one at every boundary worth caching.
    """

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
