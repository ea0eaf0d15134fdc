"""When the turns of sessions would arrive if answers took no time."""

from __future__ import annotations

from collections.abc import Callable

from workloads.request_record import RequestRecord


def as_recorded(pause_ns: int) -> int:
    """The pause itself."""
    return pause_ns


class NominalArrivals:
    """Says of each request that waits for others how early it can be sent, from what it was told of those before.

    ``pause_ns`` turns each pause behind an answer into the one that counts.
    """

    def __init__(self, pause_ns: Callable[[int], int] = as_recorded) -> None:
        self._pause_ns = pause_ns
        self._of_request: dict[str, int] = {}
        self._of_session: dict[str, int] = {}
        """The latest arrival of each session so far."""

    def add(self, record: RequestRecord, start_ns: int) -> int:
        """The arrival of ``record``: ``start_ns`` unless it waits for others, which must have been added."""
        bounds_ns = [
            self._of_request[of.request_id] + (of.delay_ns if of.dispatched else self._pause_ns(of.delay_ns))
            for of in record.after
        ]
        if record.think_time_ns is not None and record.session is not None:
            bounds_ns.append(self._of_session.get(record.session, start_ns) + self._pause_ns(record.think_time_ns))
        arrival_ns = max(bounds_ns, default=start_ns)
        if record.session is not None:
            self._of_request[record.request_id] = arrival_ns
            self._of_session[record.session] = max(arrival_ns, self._of_session.get(record.session, 0))
        return arrival_ns
