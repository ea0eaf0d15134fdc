"""What a turn of a recorded session waited for, found from the times at which requests were sent and answered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvtwin.workloads.request_record import Predecessor


@dataclass(frozen=True)
class RecordedTurn:
    """When the trace sent a request, and had its whole answer."""

    request_id: str
    sent_ns: int
    answered_ns: int


class RecordedThread:
    """The turns of a session so far, and the turns of other sessions that its next one awaits.

    A turn waits for the answer of the turn before it, and pauses as long as the trace did after all answers that it
    waits for. If it was sent while an answer was still coming, it waits for the dispatch of that request instead.
    ``rounding_ns``: a turn may seem to be sent so much before an answer that it follows.
    """

    def __init__(self, name: str, awaited: Iterable[RecordedTurn] = (), rounding_ns: int = 0) -> None:
        self.name = name
        self.awaited = list(awaited)
        self.last_turn: RecordedTurn | None = None
        self.num_turns = 0
        self._answered_ns = 0
        """When all turns so far had their answers."""
        self._rounding_ns = rounding_ns

    def add(self, turn: RecordedTurn) -> None:
        """The next turn was sent."""
        self.last_turn = turn
        self.num_turns += 1
        self._answered_ns = max(self._answered_ns, turn.answered_ns)

    def waits(self, sent_ns: int) -> tuple[int | None, tuple[Predecessor, ...]]:
        """The think time of a turn that the trace sent at ``sent_ns``, and the other turns that it waits for."""
        waits_for_all = self.last_turn is not None and self._answered_ns <= sent_ns + self._rounding_ns
        others = self.awaited
        if self.last_turn is not None and not waits_for_all:
            others = [self.last_turn, *others]
        answers_ns = [turn.answered_ns for turn in others if turn.answered_ns <= sent_ns + self._rounding_ns]
        pause_ns = max(0, sent_ns - max(answers_ns + [self._answered_ns] * waits_for_all, default=0))
        self.awaited = []
        return pause_ns if waits_for_all else None, tuple(self._predecessor(turn, sent_ns, pause_ns) for turn in others)

    def _predecessor(self, turn: RecordedTurn, sent_ns: int, pause_ns: int) -> Predecessor:
        if turn.answered_ns <= sent_ns + self._rounding_ns:
            return Predecessor(request_id=turn.request_id, delay_ns=pause_ns)
        return Predecessor(request_id=turn.request_id, delay_ns=max(0, sent_ns - turn.sent_ns), dispatched=True)
