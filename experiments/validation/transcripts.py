"""What every request of a real run asked and was told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.workloads.request_record import RequestRecord

if TYPE_CHECKING:
    from kvtwin.gpu.alone import Transcript
    from kvtwin.gpu.executor import DeviceExecutor


class Transcripts(ServerObserver):
    """Collects transcripts, in the order in which requests end. ``executor`` keeps records."""

    def __init__(self, executor: DeviceExecutor) -> None:
        self.transcripts: list[Transcript] = []
        self._executor = executor
        self._records: dict[Request, RequestRecord] = {}
        self._logits: dict[Request, list[float]] = {}
        self.outputs: dict[int, list[int]] = {}
        """By the identity of its record, what the first sample of a prompt was told."""

    def arrived(self, request: Request, record: RequestRecord, now_ns: int) -> None:
        """A request came."""
        self._records[request] = record
        self._logits[request] = []

    def processed(self, step: Step, now_ns: int) -> None:
        """Take note of the logits of what a step delivered."""
        executed = self._executor.executed[-1]
        if executed.index == step.index:
            for request, logits in zip(step.requests, executed.logits, strict=True):
                if request in self._logits:
                    self._logits[request] += logits

    def ended(self, request: Request, now_ns: int) -> None:
        """A request ended: what came after its last token was not delivered."""
        from kvtwin.gpu.alone import Transcript

        output = request.content.token_ids(request.num_prompt_tokens, request.num_tokens)
        prompt = request.content.token_ids(0, request.num_prompt_tokens)
        logits = self._logits.pop(request)[: len(output)]
        record = self._records.pop(request)
        if request.parent is None:
            self.outputs[id(record)] = output
        self.transcripts.append(Transcript(request.request_id, prompt, output, logits))
