"""A run: figures, tables and pictures of a replay, or of a folder that one left."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kvtwin.experiments.display.values import cell_text
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.records import reader
from kvtwin.experiments.records.folder import check_free, write_run_folder

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Picture: TypeAlias = Literal["timeline", "latencies", "misses", "prefixes"]

_SHOWN = ("completed", "prefix_cache_hit_rate", "num_preemptions", "mean_ttft_ms", "mean_tpot_ms")


class Run:
    """What a server did with a workload. `replay` makes one, `load_run` reads one back."""

    def __init__(self, kept: reader.Run, heading: Sequence[str] = ()) -> None:
        self._kept = kept
        self.heading: list[str] = list(heading) or [kept.title]
        """Lines that say what was simulated; of a run that was read back, one line."""

    @property
    def summary(self) -> dict[str, Any]:
        """The figures, under the keys of ``kvtwin replay --json`` (docs/output.md). Shares are from 0 to 1."""
        return self._kept.summary

    @property
    def configuration(self) -> dict[str, Any]:
        """Everything resolved that decided the run: ``options``, ``engine``, ``step_time`` and the versions."""
        configuration: dict[str, Any] = self._kept.configuration
        return configuration

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row per request that reached the engine, in order of completion; a sample of a prompt is a request.

        Columns: ``request_id``, ``record_index`` (the workload's record), ``session``, ``finish_reason``,
        ``finish_message``; in ns since the start, -1 where it never came: ``arrival_ns``, ``first_scheduled_ns``,
        ``first_token_ns``, ``finish_ns``; in tokens: ``prompt_tokens``, ``output_tokens``, ``hit_tokens``,
        ``forked_tokens``, ``resumed_hit_tokens``; ``preemptions``; and, of later turns of a session, ``pause_ns`` and
        ``history_tokens``.
        """
        return _frame(self._kept.requests)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row per step, in order; counts are as they stood when the step was scheduled.

        Columns: ``scheduled_ns``, ``start_ns``, ``end_ns``; of the step ``sequences``, ``tokens``, ``hit_tokens``,
        ``admitted``, ``preempted``; of the server ``running``, ``waiting``, ``free_blocks``, ``lacks_memory`` and
        ``pinned_blocks``; what the held blocks are used for (docs/waste.md); ``saved_blocks`` to and ``loaded_blocks``
        from the host.
        """
        return _frame(self._kept.steps)

    @property
    def replicas(self) -> list[Run]:
        """The run of each replica, as if it had been alone; empty where there was one server."""
        return [Run(each) for each in self._kept.replicas]

    def plot(self, picture: Picture = "timeline") -> Figure:
        """A picture: ``timeline`` (cache, requests and preemptions over time), ``latencies``, ``misses``, of replicas
        also ``prefixes`` (which prefixes went where).

        UserError: there is no picture of that name.
        """
        from kvtwin.experiments.pictures.of_run import picture_of_run, picture_titles

        if picture not in picture_titles(self._kept):
            *names, last = picture_titles(self._kept)
            raise UserError(f"plot: expected {', '.join(names)} or {last}, got {picture!r}")
        return picture_of_run(self._kept, picture)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Keep the run in a new folder, as ``kvtwin replay --out`` does. UserError: it is there, or cannot be made."""
        path = Path(folder)
        check_free(path)
        write_run_folder(path, self._kept.files())

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {cell_text(self.summary.get(name))}" for name in _SHOWN)
        return f"Run({self._kept.title}:\n    {figures})"


def load_run(folder: str | os.PathLike[str]) -> Run:
    """The run that ``kvtwin replay --out``, `Run.save` or a point of a sweep left. UserError: the folder is none."""
    return Run(reader.Run(Path(folder)))


def kept_run(run: Run | str | os.PathLike[str]) -> reader.Run:
    """What a run, or the folder of one, keeps. UserError: the folder is none."""
    return run._kept if isinstance(run, Run) else reader.Run(Path(run))


def _frame(columns: reader.Columns) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns)
