"""Shares of a whole: JSON, Parquet and Python have them as numbers up to 1, whatever is read by people in percent.

A number in a table has its sign in the heading, `hit rate (%)`; in a sentence it has it itself, 44.9%. What an option
was given stays as the option takes it.
"""

from __future__ import annotations

import re
from typing import Any

from kvtwin.experiments.display.values import cell_text

_SHARES = re.compile(
    r"(\w+_)?hit_rate(_last_1000_requests)?|history_survival|kv_cache_usage_\w+|kv_memory_\w+|waiting_time_share"
)
_PERCENTS = ("spec_decode_acceptance_rate",)
"""Figures that are percentages in JSON too, because they are in vLLM's."""


def is_share(key: str) -> bool:
    """Whether this figure of a summary is a share of 1."""
    return _SHARES.fullmatch(key) is not None


def percent_text(share: float | None, absent: str = "unknown") -> str:
    """A share of 1 as a percentage, without its sign."""
    return absent if share is None else f"{100 * share:.2f}"


def figure_heading(key: str) -> str:
    """The heading of a figure of the summary in a table."""
    return f"{key} (%)" if is_share(key) or key in _PERCENTS else key


def figure_cell(key: str, value: Any) -> str:
    """A figure of the summary in a table."""
    return percent_text(value, "-") if is_share(key) else cell_text(value)
