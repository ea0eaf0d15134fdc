"""``prefill_schedule_interval``: prefill only every so many steps, so that decoding requests wait less.

Rules: specification, section 5.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvtwin.engine.chunks import Candidate
from kvtwin.engine.executor import AdmissionStop, Step
from kvtwin.engine.request import Request


class PrefillPacing:
    """Says for which steps prefill is held. With an interval of 1, never."""

    def __init__(self, interval: int) -> None:
        self.holds = False
        """Whether the step being decided carries no prefill."""
        self._interval = interval
        self._steps_to_hold = 0
        self._left_a_backlog = False
        """Whether requests were left waiting by the last step that could admit them."""

    def start_step(self, running: Iterable[Request]) -> None:
        """Hold prefill if it is not its turn, none is overdue, and somebody decodes."""
        may_hold = not (self._left_a_backlog or self._is_its_turn())
        self.holds = may_hold and any(not request.is_prefill_chunk for request in running)

    def _is_its_turn(self) -> bool:
        return self._steps_to_hold == 0

    def cut(self, candidate: Candidate, num_tokens: int) -> int | AdmissionStop:
        """Nothing but a last token, while prefill is held."""
        return AdmissionStop.HELD if self.holds and num_tokens > 1 else num_tokens

    def after_admission(self, waiting: Iterable[Request]) -> None:
        """Note who is left in the queue by a step that held nothing. Deferred requests are no backlog."""
        if self._interval > 1 and not self.holds:
            self._left_a_backlog = any(not request.is_deferred for request in waiting)

    def after_step(self, step: Step) -> None:
        """Count ``step``, of which the requests do not know yet."""
        if self._interval == 1 or not step.requests:
            return
        if _carries_prefill(step):
            self._steps_to_hold = self._interval - 1
        elif self._steps_to_hold:
            self._steps_to_hold -= 1


class CommonPrefillPacing(PrefillPacing):
    """The same for ranks that step together (specification, section 17.5): all of them prefill in the same steps."""

    def __init__(self, interval: int, num_steps: Callable[[], int]) -> None:
        """``num_steps``: how many steps the ranks have taken since they were idle."""
        super().__init__(interval)
        self._num_steps = num_steps

    def _is_its_turn(self) -> bool:
        return self._num_steps() % self._interval == 0


def _carries_prefill(step: Step) -> bool:
    admitted = {admission.request for admission in step.admitted}
    if any(one.request.num_tokens - one.num_hit_tokens > 1 for one in step.admitted):
        return True
    return any(request.is_prefill_chunk for request in step.requests if request not in admitted)
