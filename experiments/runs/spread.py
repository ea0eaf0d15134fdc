"""How far the figures of a run would be apart if its step times were wrong: the run again, with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kvtwin.experiments.display.progress import progress
from kvtwin.experiments.options.replay import ReplayOptions
from kvtwin.experiments.runs.replay import replay
from kvtwin.experiments.runs.text import WIDTH, row, title
from kvtwin.sim.step_time import StepTimeModel
from kvtwin.sim.varied import VariedStepTime
from kvtwin.workloads.workload import Workload


class Variation(NamedTuple):
    """What is done to step times."""

    bias: float = 1.0
    noise: float = 0.0
    seed: int = 0

    def of(self, base: StepTimeModel) -> VariedStepTime:
        """Another server's step times."""
        return VariedStepTime(base, *self)


BIAS = 0.2
"""Of all steps, up and down: more than computed step times were wrong beside measured servers."""

VARIATIONS = (
    Variation(1 - BIAS),
    Variation(1 + BIAS),
    Variation(noise=0.01),
    Variation(noise=0.05),
    Variation(noise=0.05, seed=1),
)

FIGURES: Mapping[str, str] = {
    "prefix_cache_hits": "Hit tokens:",
    "num_preemptions": "Preemptions:",
    "num_evictions": "Evicted blocks:",
    "mean_ttft_ms": "Mean TTFT (ms):",
    "mean_tpot_ms": "Mean TPOT (ms):",
    "mean_e2el_ms": "Mean E2EL (ms):",
    "duration": "Duration (s):",
}
"""Keys of a summary, and words for them."""

Spread = dict[str, tuple[float, float] | None]
"""Of each figure the smallest and the largest; None where the run has none."""


def spread_of(
    summary: Mapping[str, Any], options: ReplayOptions, workload: Workload | None = None, *, show_progress: bool = False
) -> Spread:
    """Of the run of ``options``, whose figures are ``summary``, and of the same with other step times."""
    alone = replace(options, out=None, events=False, kv_events=False)
    summaries = [summary]
    with progress("other step times", "runs", len(VARIATIONS), show=show_progress) as bar:
        for variation in VARIATIONS:
            summaries.append(replay(alone, workload, change=variation.of).summary)
            bar.update(1)
    return spread_between(summaries)


def spread_between(summaries: Sequence[Mapping[str, Any]]) -> Spread:
    """Of runs that differ in their step times alone."""
    return {name: _range([each.get(name) for each in summaries]) for name in FIGURES}


def _range(values: list[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if len(known) == len(values) else None


def spread_lines(summary: Mapping[str, Any]) -> list[str]:
    """The section on the spread; none without."""
    spread = summary.get("spread")
    if spread is None:
        return []
    lines = [title(f" Steps {BIAS:.0%} off, or 1 to 5% at random ", "-")]
    for name, words in FIGURES.items():
        if spread[name] is not None:
            lines.append(row(words, range_text(*spread[name])))
    lines.append("=" * WIDTH)
    if amplifies(summary, spread):
        low, high = spread["mean_ttft_ms"]
        lines.append(
            f"* overloaded: where steps are {BIAS:.0%} off, mean TTFT is {low / summary['mean_ttft_ms'] - 1:+.0%} to "
            f"{high / summary['mean_ttft_ms'] - 1:+.0%} off, since waits pile up"
        )
    return lines


def amplifies(summary: Mapping[str, Any], spread: Spread) -> bool:
    """Whether the mean TTFT is off by more than steps are, half as much again at least."""
    ttft = spread["mean_ttft_ms"]
    return ttft is not None and ttft[1] > (1 + 1.5 * BIAS) * summary["mean_ttft_ms"] > 0


def range_text(low: float, high: float) -> str:
    """``13,312 to 13,552``."""
    return f"{figure_text(low)} to {figure_text(high)}"


def figure_text(value: float) -> str:
    """``13,312``, or with one digit after the point."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
