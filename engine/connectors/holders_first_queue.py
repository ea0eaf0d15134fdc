"""The waiting requests of an engine with a connector: those that hold blocks come first."""

from __future__ import annotations

from collections.abc import Iterator

from kvtwin.engine.request import Request, RequestStatus
from kvtwin.engine.waiting_queue import WaitingQueue, make_waiting_queue


class HoldersFirstQueue:
    """Two queues in the order of a ``policy``: of requests that hold blocks, and of the others.

    Invariant: who holds blocks is in ``holding``. So is who held some when it was put there: a load may have failed.
    """

    def __init__(self, policy: str) -> None:
        self.holding = make_waiting_queue(policy)
        self.others = make_waiting_queue(policy)

    def _queue_for(self, request: Request) -> WaitingQueue:
        holds = request.num_computed_tokens > 0 or request.status is RequestStatus.WAITING_FOR_REMOTE_KV
        return self.holding if holds else self.others

    def append(self, request: Request) -> None:
        self._queue_for(request).append(request)

    def put_back(self, request: Request) -> None:
        self._queue_for(request).put_back(request)

    def peek(self) -> Request:
        return (self.holding if len(self.holding) else self.others).peek()

    def pop(self) -> Request:
        return (self.holding if len(self.holding) else self.others).pop()

    def remove(self, request: Request) -> None:
        queue = self.holding if any(one is request for one in self.holding) else self.others
        queue.remove(request)

    def __len__(self) -> int:
        return len(self.holding) + len(self.others)

    def __iter__(self) -> Iterator[Request]:
        yield from self.holding
        yield from self.others
