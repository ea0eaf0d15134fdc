"""Traces that are written: to a new file, in one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from kvtwin.experiments.display.progress import followed
from kvtwin.experiments.errors import UserError
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.request_record import RequestRecord


def write_new(path: Path, records: Iterable[RequestRecord], write: Callable[[Iterable[RequestRecord]], int]) -> int:
    """``write`` the ``records`` to ``path``, with progress, and tell their number. UserError: it cannot be written."""
    try:
        num_written = write(followed(records, "writing", "requests"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    print(f"{path}: {number_of(num_written, 'request')}; `kvtwin trace inspect {path}` shows more")
    return 0
