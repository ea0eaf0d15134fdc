"""One point of a sweep: a replay in a worker process, which may be on another machine.

What comes back is the content of the run's folder; only the process that drives the sweep writes files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from kvtwin.experiments.commands import replay
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options import trace as trace_options
from kvtwin.experiments.options.parser import CommandParser
from kvtwin.workloads.errors import WorkloadError
from kvtwin.workloads.workload import Workload

T = TypeVar("T")

_MOST_HELD_IDS = 20_000_000
"""Ids of tokens and prefixes that a worker holds in memory for a trace; larger traces are read again for each point."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of one replay. UserError as on its command line."""
    parser = CommandParser(prog="kvtwin replay")
    replay.add_arguments(parser)
    args: argparse.Namespace = parser.parse_args(arguments)
    return args


def run_point(arguments: Sequence[str]) -> dict[str, bytes] | str:
    """The files of the run's folder, or why it could not be run."""
    return _outcome(lambda: replay.replay(parse(arguments), _open_once).files())


def summary_of(args: argparse.Namespace) -> dict[str, Any] | str:
    """The summary of a replay with these options, or why it could not be run."""
    return _outcome(lambda: replay.replay(args, _open_once).summary)


def _outcome(run: Callable[[], T]) -> T | str:
    try:
        return run()
    except (UserError, WorkloadError) as error:
        return " ".join(str(error).split())
    except MemoryError:
        return "out of memory"


def _open_once(args: argparse.Namespace) -> Workload:
    settings = {
        name: value for name, value in vars(args).items() if name in ("trace", "format") or name.startswith("timed_")
    }
    return _held(tuple(settings.items()))


@lru_cache(maxsize=2)
def _held(settings: tuple[tuple[str, object], ...]) -> Workload:
    """The trace that these settings open, in memory unless it is large."""
    workload = trace_options.open_trace(argparse.Namespace(**dict(settings)))
    return workload.held(_MOST_HELD_IDS)
