"""The options of ``kvtwin explain``."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import Switch, Text
from kvtwin.experiments.options.replay import ReplayOptions

CHOICES = ("slowest", "first_preempted", "most_recomputed")
"""Instead of an id."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(ReplayOptions):
    """Request."""

    request: str | None = option(
        None, Text("ID"), "id of the request in the trace; its row, from 0, if the trace has no ids"
    )
    slowest: bool = option(False, Switch(has_off=False), "instead: the request that took longest")
    first_preempted: bool = option(False, Switch(has_off=False), "instead: the first request that was preempted")
    most_recomputed: bool = option(
        False, Switch(has_off=False), "instead: the request whose tokens were computed again most"
    )
