"""A real run that ends early: Ctrl-C at a moment when everything is consistent, and the steps under way then."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvtwin.engine.executor import Executor, Step, StepResult


class InterruptibleExecutor(Executor[Any]):
    """Passes steps on to ``executor`` until the user interrupts: then the next one raises KeyboardInterrupt."""

    def __init__(self, executor: Executor[Any]) -> None:
        self._executor = executor
        self._under_way: deque[Any] = deque()
        self.is_interrupted = False

    def submit(self, step: Step) -> Any:
        """See :class:`~kvtwin.engine.executor.Executor`."""
        if self.is_interrupted:
            raise KeyboardInterrupt
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

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While in here, an interrupt waits for the next step; a second one does not."""
        usual = signal.default_int_handler
        if signal.getsignal(signal.SIGINT) is not usual or threading.current_thread() is not threading.main_thread():
            yield  # somebody else listens, or nobody
            return

        def interrupt(*_: object) -> None:
            self.is_interrupted = True
            signal.signal(signal.SIGINT, usual)

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, usual)
