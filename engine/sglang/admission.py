"""Whom SGLang admits to a prefill batch: what running requests may still need is set aside, in part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvtwin.engine.request import Request
from kvtwin.engine.sglang.page_pool import PagePool

CLIPPED_NEW_TOKENS = 4096
"""No request is expected to say more, whatever its limit."""

_FIRST_RATIO = 0.7
_LEAST_RATIO_FACTOR = 0.14
_DECAY_STEPS = 600
RETRACT_STEPS = 20
"""Decode steps that a retraction makes room for, and that the ratio after it expects."""


def is_of_known_length(request: Request) -> bool:
    """Whether nothing but its limit ends the request (``ignore_eos``)."""
    return request.eos_token_id is None and not request.stop_token_ids


class NewTokenRatio:
    """Which share of their remaining tokens running requests are expected to need, unless their length is known.

    Invariant: between ``least`` and 1.
    """

    def __init__(self, conservativeness: float) -> None:
        self.first = min(_FIRST_RATIO * conservativeness, 1.0)
        self.least = min(self.first * _LEAST_RATIO_FACTOR, 1.0)
        self._decay = (self.first - self.least) / _DECAY_STEPS
        self.now = self.first

    def decoded(self) -> None:
        """A decode step found memory: expect a little less."""
        self.now = max(self.now - self._decay, self.least)

    def retracted(self, kept: Sequence[Request]) -> None:
        """Memory ran short: expect what those who stay have said, and :data:`RETRACT_STEPS` each."""
        num_decoded = sum(request.num_output_tokens for request in kept)
        num_most = sum(request.max_tokens for request in kept)
        self.now = min(1.0, (num_decoded + RETRACT_STEPS * len(kept)) / (num_most + 1))

    def idle(self) -> None:
        """Nothing is left to serve."""
        self.now = self.first


class PrefillBudget:
    """The memory and the compute that one prefill batch may use up."""

    def __init__(
        self,
        pool: PagePool,
        decoding: Iterable[Request],
        ratio: float,
        max_prefill_tokens: int,
        chunk_tokens: int | None,
    ) -> None:
        """``chunk_tokens`` None: prompts are not split."""
        self._pool = pool
        self._page_tokens = pool.page_tokens
        self._expected = sum(
            min(request.max_tokens - request.num_output_tokens, CLIPPED_NEW_TOKENS)
            * (1.0 if is_of_known_length(request) else ratio)
            for request in decoding
        )
        """Tokens set aside: for running requests, and for all that those admitted may need."""
        self._allocated = 0
        """Of these, what is allocated at once."""
        self.input_tokens_left = max_prefill_tokens
        self.chunk_tokens_left = chunk_tokens

    @property
    def tokens_left(self) -> float:
        """Memory that is not set aside."""
        return self._pool.num_available_tokens - self._expected

    def has_memory(self) -> bool:
        """Whether anything is left for another request."""
        return self.tokens_left > 0 and self._pool.num_available_tokens > self._allocated

    def has_compute(self) -> bool:
        """Whether the batch may grow."""
        return self.input_tokens_left > 0 and (self.chunk_tokens_left is None or self.chunk_tokens_left > 0)

    def fits(self, request: Request, num_hit_tokens: int) -> bool:
        """Whether all that ``request`` may need is left; its hit is locked meanwhile."""
        num_new = max(0, request.max_tokens - request.num_output_tokens)
        needs = request.num_tokens - num_hit_tokens + min(num_new, CLIPPED_NEW_TOKENS) + self._page_tokens
        return needs < self.tokens_left

    def first_chunk(self, request: Request, num_hit_tokens: int) -> int:
        """How many of its tokens the batch can take: all, or whole pages; 0 if none."""
        num_tokens = request.num_tokens - num_hit_tokens
        if self.chunk_tokens_left is None or self._whole_pages(num_tokens) <= self.chunk_tokens_left:
            return num_tokens
        chunk = self.chunk_tokens_left // self._page_tokens * self._page_tokens
        return (num_hit_tokens + chunk) // self._page_tokens * self._page_tokens - num_hit_tokens

    def next_chunk(self, num_tokens: int) -> int:
        """How many of the ``num_tokens`` that a prompt still lacks the batch takes: at least one chunk's."""
        assert self.chunk_tokens_left is not None
        most = min(self.chunk_tokens_left, int(self.tokens_left))
        return min(num_tokens, most if most > 0 else self.chunk_tokens_left)

    def admit(self, request: Request, num_tokens: int, *, is_last_chunk: bool) -> None:
        """The batch computes ``num_tokens`` of ``request``. Its output counts with its last chunk."""
        whole = self._whole_pages(num_tokens)
        self._allocated += whole + self._page_tokens
        self._expected += whole + self._page_tokens
        self._expected += min(request.max_tokens, CLIPPED_NEW_TOKENS) if is_last_chunk else 0
        self.input_tokens_left -= whole
        if self.chunk_tokens_left is not None:
            self.chunk_tokens_left -= whole

    def _whole_pages(self, num_tokens: int) -> int:
        return -(-num_tokens // self._page_tokens) * self._page_tokens
