"""When requests get their first token."""

from __future__ import annotations

from collections.abc import Callable

from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request
from kvtwin.sim.server_observer import ServerObserver
from kvtwin.workloads.request_record import RequestRecord


class FirstTokens(ServerObserver):
    """Tells of each record when its first token is delivered."""

    looks_into_steps = False
    looks_at_turns = True

    def __init__(self, replica: int, function: Callable[[str, int], None]) -> None:
        self._replica = replica
        self._function = function
        self._waiting: dict[Request, RequestRecord] = {}

    def arrived(self, request: Request, record: RequestRecord, now_ns: int) -> None:
        if request.parent is None:
            self._waiting[request] = record

    def processed(self, step: Step, now_ns: int) -> None:
        if not self._waiting:
            return
        for request in step.requests:
            if request in self._waiting and request.num_output_tokens:
                self._function(self._waiting.pop(request).request_id, self._replica)

    def ended(self, request: Request, now_ns: int) -> None:
        self._waiting.pop(request, None)
