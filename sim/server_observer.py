"""What can watch a simulated server while it runs."""

from __future__ import annotations

from kvtwin.engine.executor import Step
from kvtwin.engine.request import Request
from kvtwin.workloads.request_record import RequestRecord


class ServerObserver:
    """Hears of requests and steps, in order; may look at the scheduler, but changes nothing.

    Subclasses override what they need. (:class:`kvtwin.engine.observer.Observer` hears of the decisions inside a step,
    :class:`kvtwin.engine.pool_listener.PoolListener` of changes to blocks.)
    """

    looks_into_steps = True
    """Whether it looks at more of steps than who is admitted and who is preempted; else it is told of these alone."""

    looks_at_turns = False
    """Whether it hears of every turn of the loop, and of outputs, though it does not look into steps: of these it may
    then see no more than the requests with their first tokens."""

    def arrived(self, request: Request, record: RequestRecord, now_ns: int) -> None:
        """A request, one of the samples of ``record``, reached the server."""

    def turns(self, now_ns: int) -> None:
        """The engine's loop begins another turn: it knows all that has arrived, and schedules next."""

    def stepped(self, now_ns: int) -> None:
        """The turn has taken its step, of an engine that steps together with others; arrivals meanwhile are unseen."""

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled."""

    def processed(self, step: Step, now_ns: int) -> None:
        """The output of the oldest unprocessed step was delivered."""

    def ended(self, request: Request, now_ns: int) -> None:
        """A request ended, for whatever reason."""
