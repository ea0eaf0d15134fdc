"""From an option to a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any

from kvtwin.experiments.errors import UserError

HERE = "dask"
"""Instead of the address of a cluster: one on this machine, for as long as it is needed."""


def connect(flag: str, address: str) -> Any:
    """A client of the cluster whose scheduler has this address. UserError, naming ``flag``: no scheduler answers there.

    Its workers need kvtwin, and the trace under the same path; what they computed comes back over the network.
    """
    distributed = _distributed(flag)
    try:
        return distributed.Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{flag} {address}: {error}") from None


@contextmanager
def dask_client(flag: str, where: str, most_workers: int) -> Iterator[Any]:
    """A client of the cluster at ``where``; of one of this machine's processes, which then ends, if that is `HERE`.

    UserError, naming ``flag``: there is no cluster, or it loses what was sent to it.
    """
    if not where:
        raise UserError(f"{flag}: expected {HERE}, or the address of a Dask cluster, got ''")
    if where != HERE:
        with connect(flag, where) as client, _losses(flag, where):
            yield client
        return
    distributed = _distributed(flag)
    count = min(most_workers, os.cpu_count() or 1)
    settings = {"n_workers": count, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with (
        distributed.LocalCluster(**settings) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        _losses(flag, where),
    ):
        yield client


def _distributed(flag: str) -> Any:
    """The package, which says nothing of its types. UserError: it is not installed."""
    try:
        import distributed
    except ImportError:
        raise UserError(f"{flag}: needs the extra: pip install 'kvtwin[dask]'") from None
    return distributed


@contextmanager
def _losses(flag: str, where: str) -> Iterator[None]:
    distributed = _distributed(flag)
    try:
        yield
    except (distributed.KilledWorker, distributed.comm.CommClosedError, CancelledError):
        raise UserError(f"{flag} {where}: its workers were lost (killed, or out of memory?)") from None
    except ImportError as error:
        raise UserError(f"{flag} {where}: its workers need this version of kvtwin: {error}") from None
