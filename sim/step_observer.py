"""What can watch a simulated server while it runs."""

from __future__ import annotations

from typing import Protocol

from engine.executor import Step


class StepObserver(Protocol):
    """Is told of every step, in order; sees the scheduler as it then is and changes nothing."""

    def scheduled(self, step: Step, now_ns: int) -> None:
        """A step was scheduled."""

    def processed(self, step: Step, now_ns: int) -> None:
        """The output of the oldest step that was not processed yet was delivered."""
