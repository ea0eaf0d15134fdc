"""Runs side by side."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvtwin.experiments.api.run import Run, kept_run
from kvtwin.experiments.comparison.facts import compare_facts
from kvtwin.experiments.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


class Comparison:
    """Several runs and their differences to the first. `compare` makes one."""

    def __init__(self, summary: dict[str, Any]) -> None:
        self.summary = summary
        """All of it, under the keys of ``kvtwin compare --json``."""

    @cached_property
    def options(self) -> pd.DataFrame:
        """The options that differ: a row per option, a column per run."""
        return self._frame("options")

    @cached_property
    def figures(self) -> pd.DataFrame:
        """The figures that differ: a row per figure, a column per run."""
        return self._frame("figures")

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row per run after the first: how many requests fared differently, or why they cannot be compared."""
        import pandas as pd

        return pd.DataFrame(self.summary["requests"], index=self.summary["runs"][1:])

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.summary['runs'])}:\n{self.figures})"

    def _frame(self, key: str) -> pd.DataFrame:
        import pandas as pd

        rows = {row["name"]: row["values"] for row in self.summary[key] if not row["equal"]}
        return pd.DataFrame.from_dict(rows, orient="index", columns=self.summary["runs"], dtype=object)


def compare(*runs: Run | str | os.PathLike[str]) -> Comparison:
    """Compare runs, or folders of runs, with the first of them. UserError: fewer than two, or a folder is none."""
    if len(runs) < 2:
        raise UserError("RUN: expected at least two runs to compare")
    return Comparison(compare_facts([kept_run(run) for run in runs], _names(runs)))


def _names(runs: tuple[Run | str | os.PathLike[str], ...]) -> list[str]:
    return [f"run {n}" if isinstance(run, Run) else os.fspath(run) for n, run in enumerate(runs, start=1)]
