"""Worker processes that know nothing of the script that started them.

A spawned process of Python imports its parent's main module again, for functions that are defined there. A script or a
notebook that starts a sweep would so start it anew in every worker. Ours need nothing of it: what they call is in
modules of kvtwin.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnContext, SpawnProcess
from threading import Lock

_HIDDEN = ("__spec__", "__file__")
"""What a main module is found again by; an interactive one has neither."""

_lock = Lock()


class _WorkerProcess(SpawnProcess):
    def start(self) -> None:
        with _hidden_main_module():
            super().start()


class WorkerContext(SpawnContext):
    """Spawned, not forked: this process has threads (progress bars, numpy), whose locks a child would inherit."""

    Process = _WorkerProcess


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
