"""The highest rate that a server bears."""

from __future__ import annotations

from typing import Any

from kvtwin.experiments.api.given import WorkloadSource, given_options, source_of
from kvtwin.experiments.limits.all_limits import limit_of_options
from kvtwin.experiments.options.limit import LimitOptions


def limit(workload: WorkloadSource, **options: Any) -> dict[str, Any]:
    """The highest rate at which nothing is preempted, hits keep coming and latencies are kept (docs/limits.md).

    As ``kvtwin limit --json`` prints it: ``servers`` has, for each memory fraction, ``limits`` with the criterion, the
    highest rate that held and the lowest that failed (None: none did), and the ``replays`` of the search. Rates are
    multiples of the trace's own, or requests per second with ``request_rate``; ``rate_option`` says which.

    ``options`` are those of ``kvtwin limit --help``: ``memory_fractions``, ``goodput`` (``["ttft:500", "tpot:50"]``),
    ``precision``, ``workers``, and those of `replay`. UserError: no server can be replayed, or the rate is not open.
    """
    path, opened = source_of(workload, options)
    return limit_of_options(given_options(LimitOptions, "kvtwin limit", options, without=("out",), trace=path), opened)
