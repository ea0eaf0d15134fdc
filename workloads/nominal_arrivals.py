"""When the turns of sessions would arrive if answers took no time."""

from __future__ import annotations

from collections.abc import Callable

from kvtwin.workloads.request_record import RequestRecord


def as_recorded(pause_ns: int) -> int:
    """The pause itself."""
    return pause_ns


class NominalArrivals:
    """The earliest time at which each request that waits for others can be sent, given the requests before it.

    ``pause_ns`` maps each pause after an answer to the one that is played.
    """

    def __init__(self, pause_ns: Callable[[int], int] = as_recorded) -> None:
        self._pause_ns = pause_ns
        self._of_request: dict[str, int] = {}
        self._of_session: dict[str, int] = {}
        """The latest arrival of each session so far."""

    def add(self, record: RequestRecord, not_before_ns: int) -> int:
        """The arrival of ``record``: ``not_before_ns``, or later if it waits for others, which must have been added."""
        arrival_ns = not_before_ns
        for of in record.after:
            pause_ns = of.delay_ns if of.dispatched else self._pause_ns(of.delay_ns)
            arrival_ns = max(arrival_ns, self._of_request[of.request_id] + pause_ns)
        if record.session is None:
            return arrival_ns
        if record.think_time_ns is not None:
            before_ns = self._of_session.get(record.session, 0)
            arrival_ns = max(arrival_ns, before_ns + self._pause_ns(record.think_time_ns))
        self._of_request[record.request_id] = arrival_ns
        self._of_session[record.session] = max(arrival_ns, self._of_session.get(record.session, 0))
        return arrival_ns
