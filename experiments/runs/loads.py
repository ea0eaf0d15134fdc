"""The load of a run: a workload that is opened, and shaped as the options say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.setup.load import shape_load
from kvtwin.experiments.setup.trace import open_trace, warn_of
from kvtwin.workloads.counts import number_of
from kvtwin.workloads.load import Load
from kvtwin.workloads.workload import Workload


def opened_load(
    options: ReplayOptions, workload: Workload | None, *, show_progress: bool = False
) -> tuple[Workload, Load]:
    """``workload``, or the trace of ``options``, and the load made of it. UserError: settings that cannot be."""
    workload = open_trace(options.trace, options) if workload is None else workload
    load = shape_load(options, workload)
    if show_progress:
        warn_of(workload)
    if options.warmup_requests >= load.num_requests:
        raise UserError(f"--warmup-requests: leaves nothing to count of {number_of(load.num_requests, 'request')}")
    return workload, load


@contextmanager
def within_the_clock() -> Iterator[None]:
    """UserError: the simulated time passes what the clock counts."""
    try:
        yield
    except OverflowError:
        raise UserError("the simulated time passes 292 years: look at --step-time and the trace's times") from None
