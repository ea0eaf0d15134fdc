"""Worker processes that know nothing of the script that started them, and end with it.

A spawned process of Python imports its parent's main module again, for functions that are defined there. A script or a
notebook that starts a sweep would so start it anew in every worker. Ours need nothing of it: what they call is in
modules of kvtwin.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import parent_process
from multiprocessing.queues import SimpleQueue
from threading import Lock, RLock, Thread
from typing import Any

from tqdm import tqdm

from kvtwin.experiments.files.ending import ending_later

_HIDDEN = ("__spec__", "__file__")
"""What a main module is found again by; an interactive one has neither."""

_lock = Lock()


class _WorkerProcess(SpawnProcess):
    context: WorkerContext
    """In the parent only."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "context"}

    def start(self) -> None:
        with _hidden_main_module(), ending_later():  # a child that is half started complains when it is let down
            super().start()
        Thread(target=self._end_with_others, daemon=True).start()

    def _end_with_others(self) -> None:
        """A process that is killed while it writes a result lets the others, and the reader, wait for the rest."""
        wait([self.sentinel])
        self.context.lost()

    def run(self) -> None:
        for name in ("SIGINT", "SIGHUP"):  # a terminal sends them to all processes: the parent decides
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
        tqdm.set_lock(RLock())  # its own is a semaphore that outlives a process that is killed
        Thread(target=_end_with_parent, daemon=True).start()
        super().run()


def _end_with_parent() -> None:
    """The parent holds one end of a pipe; when it is gone, however it ended, the other end is ready."""
    parent = parent_process()
    assert parent
    wait([parent.sentinel])
    os._exit(1)


class WorkerContext(SpawnContext):
    """Makes the processes of one pool and the queue that they answer through; when one of them ends, all do.

    Spawned, not forked: this process has threads (progress bars, numpy), whose locks a child would inherit.
    """

    def __init__(self) -> None:
        super().__init__()
        self._processes: list[_WorkerProcess] = []
        self._answers: list[SimpleQueue[Any]] = []
        self._lock = Lock()
        self._may_end = False

    def Process(self, *args: Any, **settings: Any) -> _WorkerProcess:  # type: ignore[override]  # noqa: N802
        process = _WorkerProcess(*args, **settings)
        process.context = self
        self._processes.append(process)
        return process

    def SimpleQueue(self) -> SimpleQueue[Any]:  # type: ignore[override]  # noqa: N802
        answers = super().SimpleQueue()
        self._answers.append(answers)
        return answers

    def let_end(self) -> None:
        """From now on processes end because nothing is left to do, one after the other."""
        with self._lock:
            self._may_end = True

    def lost(self) -> None:
        """A process has ended."""
        if not self._may_end:
            self.kill()

    def kill(self) -> None:
        """End the processes at once, whatever they do.

        Half an answer may be in the queue. Its reader sees that the rest never comes only when nobody could write it:
        this process holds the writing end as well, for the processes that it starts.
        """
        with self._lock:
            for process in self._processes:
                if process.pid is not None:
                    process.kill()
            while self._answers:
                self._answers.pop()._writer.close()  # type: ignore[attr-defined]


@contextmanager
def _hidden_main_module() -> Iterator[None]:
    """While a process is started, the main module looks like that of an interactive session."""
    main = vars(sys.modules["__main__"])
    with _lock:
        kept = {name: main[name] for name in _HIDDEN if name in main}
        try:
            main.update(dict.fromkeys(kept))
            yield
        finally:
            main.update(kept)
