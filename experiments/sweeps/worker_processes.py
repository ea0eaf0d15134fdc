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
from threading import Lock, RLock, Thread
from typing import Any

from tqdm import tqdm

from kvtwin.experiments.files.ending import ending_later

_HIDDEN = ("__spec__", "__file__")
"""What a main module is found again by; an interactive one has neither."""

_lock = Lock()


class _WorkerProcess(SpawnProcess):
    def start(self) -> None:
        with _hidden_main_module(), ending_later():  # a child that is half started complains when it is let down
            super().start()

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
    """Spawned, not forked: this process has threads (progress bars, numpy), whose locks a child would inherit."""

    def __init__(self) -> None:
        super().__init__()
        self._started: list[_WorkerProcess] = []

    def Process(self, *args: Any, **settings: Any) -> _WorkerProcess:  # type: ignore[override]  # noqa: N802
        process = _WorkerProcess(*args, **settings)
        self._started.append(process)
        return process

    def kill(self) -> None:
        """End the processes at once, whatever they do."""
        for process in self._started:
            if process.is_alive():
                process.kill()


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
