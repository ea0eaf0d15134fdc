"""The options of ``kvtwin explain``."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import REQUIRED, option
from kvtwin.experiments.options.kinds import Text
from kvtwin.experiments.options.replay import ReplayOptions


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(ReplayOptions):
    """Request."""

    request: str = option(
        REQUIRED, Text("ID"), "id of the request in the trace; its row, from 0, if the trace has no ids"
    )
