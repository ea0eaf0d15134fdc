"""A real run that ends early: at a moment when everything is consistent, and the steps under way then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kvtwin.engine.executor import Executor, Step, StepResult
from kvtwin.experiments.files.ending import Ended, handled


class Interruption:
    """Whether the user ended the command while some executors worked."""

    def __init__(self) -> None:
        self.ended: Ended | None = None
        """What the next step raises."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While in here, a signal that ends the command waits for the next step; a second one does not."""
        with ExitStack() as until_first:

            def interrupt(number: int, _frame: Any) -> None:
                self.ended = Ended(number)
                until_first.close()

            until_first.enter_context(handled(interrupt))
            yield


class InterruptibleExecutor(Executor[Any]):
    """Passes steps on to ``executor`` until there is an ``interruption``: then the next one raises `Ended`."""

    def __init__(self, executor: Executor[Any], interruption: Interruption) -> None:
        self._executor = executor
        self._interruption = interruption
        self._under_way: deque[Any] = deque()

    def submit(self, step: Step) -> Any:
        """See :class:`~kvtwin.engine.executor.Executor`."""
        if self._interruption.ended:
            raise self._interruption.ended
        ticket = self._executor.submit(step)
        self._under_way.append(ticket)
        return ticket

    def collect(self, ticket: Any) -> StepResult:
        """See :class:`~kvtwin.engine.executor.Executor`."""
        self._under_way.popleft()
        return self._executor.collect(ticket)

    def finish(self) -> None:
        """Wait for the steps that are under way, so that the executor's record has them."""
        while self._under_way:
            self.collect(self._under_way[0])
