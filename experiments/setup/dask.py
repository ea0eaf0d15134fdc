"""From an option to a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvtwin.experiments.errors import UserError

HERE = "dask"
"""Instead of the address of a cluster: one on this machine, for as long as it is needed."""


def connect(flag: str, address: str, **settings: Any) -> Any:
    """A client of the cluster whose scheduler has this address. UserError, naming ``flag``: no scheduler answers there.

    Its workers need kvtwin, and the trace under the same path; what they computed comes back over the network.
    """
    try:
        from distributed import Client
    except ImportError:
        raise UserError(f"{flag}: needs the extra: pip install 'kvtwin[dask]'") from None
    try:
        return Client(address, timeout=10, set_as_default=False, **settings)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{flag} {address}: {error}") from None


@contextmanager
def dask_client(flag: str, where: str, most_workers: int) -> Iterator[Any]:
    """A client of the cluster at ``where``; of one of this machine's processes, which then ends, if that is `HERE`."""
    if not where:
        raise UserError(f"{flag}: expected {HERE}, or the address of a Dask cluster, got ''")
    if where != HERE:
        with connect(flag, where) as client:
            yield client
        return
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise UserError(f"{flag}: needs the extra: pip install 'kvtwin[dask]'") from None
    import os

    count = min(most_workers, os.cpu_count() or 1)
    with (
        LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
