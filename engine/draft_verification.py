"""Speculative decoding: a step verifies drafts of the next tokens (specification, section 9).

What drafts and how good the drafts are is the executor's business; decisions depend only on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.engine.chunks import Candidate
from kvtwin.engine.config import EngineConfig
from kvtwin.engine.executor import AdmissionStop, Step
from kvtwin.engine.request import Request, RequestStatus
from kvtwin.engine.speculation import Speculation
from kvtwin.engine.statistics import SpeculationStatistics


class DraftVerification:
    """Which drafts a step verifies, and what comes of it.

    A request holds drafts from when an output told how many were made (or, with asynchronous scheduling, from when a
    step was scheduled that will make them) until it is scheduled next, or preempted.
    """

    def __init__(self, config: EngineConfig, speculation: Speculation, statistics: SpeculationStatistics) -> None:
        self._statistics = statistics
        self._num_drafts = speculation.num_speculative_tokens
        self._is_async = config.async_scheduling
        self._max_model_len = config.max_model_len
        self._max_batched_tokens = config.max_num_batched_tokens
        self._is_draft_model = speculation.method == "draft_model"

    def limit(self, budget_left: int, step: Step) -> int:
        """Tokens of ``budget_left`` that the next request of ``step`` may have.

        A draft model computes one token more of each request than the step does, in a batch of equal size.
        """
        if not self._is_draft_model:
            return budget_left
        return min(budget_left, self._max_batched_tokens - step.total_tokens - len(step.requests) - 1)

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """Pad a candidate that has one token to compute to as many as a decode has, if it may.

        So that a step of decodes stays uniform, such a request gets drafts that are sure to be rejected; not while a
        running request is in the middle of its prompt, nor without any request or prefix that was there before.
        """
        request, hit, step, budget_left = candidate
        if num_tokens > 1 or request.num_tokens + self._num_drafts >= self._max_model_len:
            return num_tokens
        running = step.requests[: len(step.requests) - len(step.admitted)]
        if any(other.is_prefill_chunk for other in running) or not (running or hit.num_tokens):
            return num_tokens
        return 1 + self._num_drafts if self._num_drafts < budget_left else AdmissionStop.BUDGET

    def claim(self, step: Step) -> None:
        """The step is decided: note which of its tokens are drafts; its requests hold none from now on."""
        for request, start, num_tokens in zip(step.requests, step.num_computed_tokens, step.num_tokens, strict=True):
            num_drafts = start + num_tokens - request.num_tokens - request.num_placeholders
            if num_drafts > 0:
                step.num_drafts[request] = num_drafts
            request.num_drafts = 0

    def expect(self, step: Step) -> None:
        """The step counts as computed: with asynchronous scheduling, count on all its drafts, and on new ones."""
        if not self._is_async:
            return
        for request in step.requests:
            if not request.is_prefill_chunk:
                request.num_placeholders += step.num_drafts.get(request, 0)
                request.num_drafts = self._num_drafts

    def settle(self, step: Step, request: Request, num_tokens: int) -> None:
        """Take rejected drafts back: ``num_tokens`` output tokens came, one more than drafts were accepted."""
        num_drafts = step.num_drafts.get(request, 0)
        num_rejected = num_drafts + 1 - num_tokens
        if num_drafts:
            self._statistics.record(num_drafts, num_tokens - 1)
        request.num_highest_computed_tokens -= num_rejected
        if request.status is RequestStatus.RUNNING:
            request.num_computed_tokens -= num_rejected
            if self._is_async:
                request.num_placeholders -= num_drafts

    def receive(self, step: Step, num_drafts: Sequence[int]) -> None:
        """Hand out the drafts that were made behind the output of ``step``."""
        if self._is_async or not num_drafts:
            return
        for request, number in zip(step.requests, num_drafts, strict=True):
            if request.status is RequestStatus.RUNNING and not request.is_prefill_chunk:
                request.num_drafts = number


class NoDrafts:
    """Without speculative decoding: the same methods, and nothing is drafted."""

    def limit(self, budget_left: int, step: Step) -> int:
        """All of it."""
        return budget_left

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """All of them."""
        return num_tokens

    def claim(self, step: Step) -> None: ...
    def expect(self, step: Step) -> None: ...
    def settle(self, step: Step, request: Request, num_tokens: int) -> None: ...
    def receive(self, step: Step, num_drafts: Sequence[int]) -> None: ...


def make_draft_verification(config: EngineConfig, statistics: SpeculationStatistics) -> DraftVerification | NoDrafts:
    """What ``speculation`` asks for."""
    return DraftVerification(config, config.speculation, statistics) if config.speculation else NoDrafts()
