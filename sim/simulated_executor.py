"""The executor that predicts: durations from a step-time model, output tokens from the workload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvtwin.engine.block_keys import UNKNOWN_TOKEN
from kvtwin.engine.executor import Executor, Step, StepResult
from kvtwin.engine.request import Request
from kvtwin.sim.draft_acceptance import DraftAcceptance
from kvtwin.sim.host_link import HostLink
from kvtwin.sim.requests import EOS_TOKEN
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.sim.step_costs import HasStepCosts, StepCosts
from kvtwin.sim.step_shape import step_shape
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.workloads.request_record import RequestRecord

_NO_TOKENS: Sequence[int] = ()
_UNKNOWN_OUTPUT: Sequence[int] = (UNKNOWN_TOKEN,)


class PredictedStep(NamedTuple):
    """The ticket of a step: how long it takes is known when it is submitted."""

    step: Step
    duration_ns: int


class SimulatedExecutor(Executor[PredictedStep], ServerObserver):
    """An executor without a device. It has no clock: whoever has one lets ``duration_ns`` pass."""

    def __init__(
        self, step_time: StepTimeModel, host_link: HostLink | None = None, acceptance: DraftAcceptance | None = None
    ) -> None:
        """Copies to and from the host take no time without a ``host_link``.

        ``acceptance`` is needed where the engine speculates; making drafts takes no time.
        """
        self._step_time = step_time
        self._host_link = host_link
        self._acceptance = acceptance
        self._known_outputs: dict[Request, tuple[Sequence[int] | None, int]] = {}

    def step_costs(self, most_sequences: int, most_tokens: int) -> StepCosts | None:
        """The step-time model in numbers; None where it has none, or a step depends on more than its shape."""
        model = self._step_time
        if self._host_link or self._acceptance or not isinstance(model, HasStepCosts):
            return None
        return model.step_costs(most_sequences, most_tokens)

    def arrived(self, request: Request, record: RequestRecord, now_ns: int) -> None:
        """Remember what ``request`` will say, if that matters: known tokens, or where it ends by itself.

        A record tells what the first sample of its prompt says; what the others say is unknown.
        """
        token_ids = record.output_token_ids if request.parent is None else None
        if token_ids is not None or request.eos_token_id is not None:
            self._known_outputs[request] = (token_ids, record.output_tokens)
        if self._acceptance:
            self._acceptance.expect(request, record)

    def submit(self, step: Step) -> PredictedStep:
        """The step and its predicted duration, copies first; a step with neither requests nor copies takes no time."""
        duration_ns = self._step_time.duration_ns(step_shape(step)) if step.requests else 0
        if self._host_link and (step.saves or step.loads):
            duration_ns += self._host_link.duration_ns(len(step.saves) + len(step.loads))
        return PredictedStep(step, duration_ns)

    def collect(self, ticket: PredictedStep) -> StepResult:
        """Duration and output tokens of a submitted step."""
        step, duration_ns = ticket
        for request in step.finished:
            self._known_outputs.pop(request, None)
            if self._acceptance:
                self._acceptance.forget(request)
        if self._acceptance:
            num_accepted = self._acceptance.num_accepted(step)
            tokens = [
                self._next_tokens(request, 1 + num_accepted.get(request, 0)) if samples else _NO_TOKENS
                for request, samples in zip(step.requests, step.samples, strict=True)
            ]
            return StepResult(duration_ns, tokens, [self._acceptance.num_drafts] * len(tokens))
        if self._known_outputs:
            tokens = [
                self._next_token(request, request.num_output_tokens) if samples else _NO_TOKENS
                for request, samples in zip(step.requests, step.samples, strict=True)
            ]
        else:
            tokens = [_UNKNOWN_OUTPUT if samples else _NO_TOKENS for samples in step.samples]
        return StepResult(duration_ns, tokens)

    def _next_tokens(self, request: Request, count: int) -> Sequence[int]:
        """The ``count`` tokens that follow those delivered so far: outputs are collected in order."""
        first = request.num_output_tokens
        return [token for index in range(first, first + count) for token in self._next_token(request, index)]

    def _next_token(self, request: Request, index: int) -> Sequence[int]:
        """Output token ``index``, by itself."""
        known = self._known_outputs.get(request)
        if known is None:
            return _UNKNOWN_OUTPUT
        token_ids, length = known
        if request.eos_token_id is not None and index == length - 1:
            return (EOS_TOKEN,)
        if token_ids is None or index >= len(token_ids):
            return _UNKNOWN_OUTPUT
        return (token_ids[index],)
