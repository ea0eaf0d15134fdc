"""How many tokens a request may compute in one step: the rules that cut its chunk down (specification, section 5)."""

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


class PrefillLookahead:
    """Lets no chunk of a prompt end so short of its last token that a drafter of several modules reads beyond it."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def fit(self, request: Request, start: int, num_new_tokens: int) -> int:
        """As many of the tokens after the first ``start`` as leave none or enough; 0 or less is none."""
        num_left = request.num_tokens - start - num_new_tokens
        return num_new_tokens - (self._num_tokens - num_left) if 0 < num_left < self._num_tokens else num_new_tokens

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """As :meth:`fit`; a candidate that would get none is passed over."""
        num_tokens = self.fit(candidate.request, candidate.hit.num_tokens, num_tokens)
        return num_tokens if num_tokens > 0 else AdmissionStop.LOOKAHEAD
