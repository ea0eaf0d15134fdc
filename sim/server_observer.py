"""What can watch a simulated server while it runs."""

from __future__ import annotations

from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request
from kvtwin.workloads.request_record import RequestRecord


class ServerObserver:
    """Is told of requests and steps, in order; sees the scheduler as it then is and changes nothing.

    Whoever watches overrides what it wants to know. (:class:`kvtwin.engine.observer.Observer` is told of the decisions
    inside a step, :class:`kvtwin.engine.pool_listener.PoolListener` what becomes of blocks.)
    """

    def arrived(self, request: Request, record: RequestRecord, now_ns: int) -> None:
        """A request, one of the samples of ``record``, reached the server."""

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled."""

    def processed(self, step: Step, now_ns: int) -> None:
        """The output of the oldest step that was not processed yet was delivered."""

    def ended(self, request: Request, now_ns: int) -> None:
        """A request ended, for whatever reason."""
