"""The option for drafted tokens."""

from __future__ import annotations

from dataclasses import dataclass

from kvtwin.experiments.options.fields import option
from kvtwin.experiments.options.kinds import JsonObject


@dataclass(frozen=True, kw_only=True)
class SpeculationOptions:
    """Speculative decoding (vLLM's flag)."""

    speculative_config: str | None = option(
        None, JsonObject(), "speculative decoding, as JSON; see docs/speculation.md", "-sc"
    )
