"""Where a sweep's points run: processes of this machine, or a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor

from kvtwin.experiments.setup.dask import connect
from kvtwin.experiments.sweeps.worker_processes import WorkerContext

_RETRIES = 3
"""How often a cluster runs a point again whose worker was lost."""


def local_processes(workers: int | None, num_points: int) -> Callable[[], Executor]:
    """Makes pools of ``workers`` processes, else one per CPU; they end with this process, however it ends."""
    count = min(workers or os.cpu_count() or 1, num_points)
    return lambda: _LocalProcesses(count)


class _LocalProcesses(ProcessPoolExecutor):
    """Worker processes of this machine. Whoever does not wait for them at the shutdown ends what they are doing."""

    def __init__(self, count: int) -> None:
        self._context = WorkerContext()
        super().__init__(max_workers=count, mp_context=self._context)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See :class:`concurrent.futures.Executor`."""
        if wait:
            self._context.let_end()
        else:
            super().shutdown(False, cancel_futures=True)
            self._context.kill()
        super().shutdown(True, cancel_futures=cancel_futures)  # else semaphores would be left behind


def dask_cluster(address: str) -> Callable[[], Executor]:
    """Makes executors on the cluster whose scheduler has this address. UserError: no scheduler answers there.

    Its workers need kvtwin, and the trace under the same path; what they computed comes back over the network.
    """
    client = connect("--dask", address)
    return lambda: client.get_executor(retries=_RETRIES)
