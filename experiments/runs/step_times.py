"""One load with several step-time models: what hangs on which of them is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.errors import UserError
from kvtwin.experiments.options.replay import ReplayCommandOptions
from kvtwin.experiments.runs.kept import replay_and_keep
from kvtwin.experiments.runs.replayed import Replayed
from kvtwin.experiments.runs.spread import FIGURES, figure_text, range_text


def step_time_names(options: ReplayCommandOptions) -> list[str]:
    """The step-time models that are asked for, each once."""
    return list(dict.fromkeys(options.step_time.split(",")))


def replay_with_each(options: ReplayCommandOptions) -> dict[str, Replayed]:
    """A replay with each step-time model of ``options``. UserError: settings that cannot be, or a run to keep."""
    if options.out:
        raise UserError("--out: not with several step-time models; `kvtwin sweep` keeps a run with each of them")
    return {name: replay_and_keep(replace(options, step_time=name)) for name in step_time_names(options)}


def step_time_parts(replays: Mapping[str, Replayed]) -> list[Part]:
    """What was simulated, and the figures of each replay in a column."""
    heading = dict.fromkeys(line for replayed in replays.values() for line in replayed.heading)
    summaries = [replayed.summary for replayed in replays.values()]
    rows = [(words, *(_cell(name, summary) for summary in summaries)) for name, words in FIGURES.items()]
    return [*heading, "", table(("", *replays), rows)]


def _cell(name: str, summary: Mapping[str, Any]) -> str:
    if summary[name] is None:
        return "-"
    spread = summary.get("spread", {}).get(name)
    return figure_text(summary[name]) + (f" ({range_text(*spread)})" if spread else "")
