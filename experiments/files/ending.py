"""Signals that end a command: Ctrl-C, SIGTERM (``kill``, job schedulers), SIGHUP (a terminal that closes).

All of them raise KeyboardInterrupt where the command is, so that whatever keeps a record at Ctrl-C keeps it at the
others too. The exit code tells which one it was: 130, 143, 129.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""By name: not every system has all of them."""


class Ended(KeyboardInterrupt):
    """The signal ``number`` asked the command to end; the text is what there is to say of it.

    ``Ended(*ended.args)`` is equal: SimPy copies what is raised in a process like that.
    """

    def __init__(self, number: int, text: str = "interrupted") -> None:
        super().__init__(number, text)
        self.number = number

    def __str__(self) -> str:
        return str(self.args[1])


def ended_by(interrupt: KeyboardInterrupt) -> int:
    """The number of the signal behind ``interrupt``; Python raises it without one at Ctrl-C."""
    return interrupt.number if isinstance(interrupt, Ended) else signal.SIGINT


@contextmanager
def ending_signals() -> Iterator[None]:
    """While in here, what would kill the process silently raises `Ended` instead. What is ignored stays ignored."""
    with handled(_end, lambda usual: usual is signal.SIG_DFL):
        yield


@contextmanager
def handled(handler: Callable[[int, Any], Any], replaces: Callable[[Any], bool] | None = None) -> Iterator[None]:
    """While in here, ``handler`` gets the ending signals whose usual handler it ``replaces``: by default, one of ours.

    Only the main thread may set handlers: elsewhere nothing changes.
    """
    replaces = replaces or (lambda usual: usual in (signal.default_int_handler, _end))
    kept: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
        kept = {number: usual for number in numbers if replaces(usual := signal.getsignal(number))}
    try:
        for number in kept:
            signal.signal(number, handler)
        yield
    finally:
        for number, usual in kept.items():
            signal.signal(number, usual)


@contextmanager
def ending_later() -> Iterator[None]:
    """While in here, the ending signals wait: for code of others that makes something else of a KeyboardInterrupt."""
    numbers: list[int] = []
    with handled(lambda number, _frame: numbers.append(number)):
        yield
    if numbers:
        raise Ended(numbers[0])


def _end(number: int, _frame: Any) -> NoReturn:
    raise Ended(number)
