"""The queue of requests that wait for admission, in the order of the scheduling policy."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Protocol

from kvtwin.engine.request import Request


class WaitingQueue(Protocol):
    """What the scheduler asks of a queue. The head is the request that is to be admitted next."""

    def append(self, request: Request) -> None:
        """Let a request wait that has just arrived."""

    def put_back(self, request: Request) -> None:
        """Let a request wait again that was preempted, or taken off the head and not admitted."""

    def peek(self) -> Request:
        """The head. IndexError when nothing waits."""

    def pop(self) -> Request:
        """Take the head off. IndexError when nothing waits."""

    def remove(self, request: Request) -> None:
        """Take a request off, wherever it stands."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class FcfsQueue:
    """First come, first served; preempted requests go back to the head."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def append(self, request: Request) -> None:
        self._requests.append(request)

    def put_back(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def remove(self, request: Request) -> None:
        self._requests.remove(request)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """Smallest (priority, arrival, request id) first; a preempted request keeps its arrival."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, str, int, Request]] = []
        self._serial = count()

    def append(self, request: Request) -> None:
        entry = (request.priority, request.arrival_ns, request.request_id, next(self._serial), request)
        heapq.heappush(self._heap, entry)

    put_back = append

    def peek(self) -> Request:
        return self._heap[0][-1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[-1]

    def remove(self, request: Request) -> None:
        self._heap = [entry for entry in self._heap if entry[-1] is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[-1] for entry in sorted(self._heap))


def make_waiting_queue(policy: str) -> WaitingQueue:
    """The queue of a ``--scheduling-policy``."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()
