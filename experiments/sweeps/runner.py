"""Running the points of a sweep on any ``concurrent.futures.Executor``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed

from kvtwin.experiments.sweeps.point import run_point, run_point_for_summary
from kvtwin.experiments.sweeps.spec import SweepPoint
from kvtwin.workloads.workload import Workload

_MOST_BREAKS = 3
"""How often a pool may lose a worker before what it still had to do counts as failed."""

PointFiles = dict[str, bytes]


def run_points(
    points: Iterable[SweepPoint],
    make_executor: Callable[[], Executor],
    workload: Workload | None = None,
    *,
    only_summaries: bool = False,
) -> Generator[tuple[SweepPoint, PointFiles | str], None, None]:
    """Yield each point with its files, or with the reason why it failed, in order of completion.

    With ``only_summaries`` that is the only file. ``workload`` is sent instead of the points' traces. A pool that loses
    a worker (killed, out of memory) is replaced, and what it had not finished is run again.
    """
    run = run_point_for_summary if only_summaries else run_point
    left = {point.index: point for point in points}
    for _ in range(_MOST_BREAKS):
        executor = make_executor()
        try:
            futures = {executor.submit(run, point.options, workload): point for point in left.values()}
            for point, outcome in _finished(futures):
                del left[point.index]
                yield point, outcome
        except BrokenExecutor:
            pass
        finally:
            executor.shutdown(wait=not left)  # interrupted, or broken: nobody waits for the others
        if not left:
            return
    for point in left.values():
        yield point, f"lost its worker {_MOST_BREAKS} times (killed, or out of memory?)"


def _finished(
    futures: dict[Future[PointFiles | str], SweepPoint],
) -> Generator[tuple[SweepPoint, PointFiles | str], None, None]:
    for future in as_completed(futures):
        try:
            outcome = future.result()
        except BrokenExecutor:
            raise
        except Exception as error:  # a bug in one point must not lose the others
            outcome = f"{type(error).__name__}: {error}"
        yield futures[future], outcome
