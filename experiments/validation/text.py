"""A prediction beside its measurement, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvtwin.experiments.display.cells import cell_text
from kvtwin.experiments.validation.facts import DECISIONS

_LATENCY_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E latency"}
_WIDTHS = (34, 14, 14, 12)


def text_lines(facts: Mapping[str, Any]) -> list[str]:
    """Decisions, latencies, step times, checks; the verdict last."""
    return [
        _row("", "measured", "predicted", "error"),
        *_decision_lines(facts["decisions"]),
        *_latency_lines(facts["latencies"]),
        *_step_time_lines(facts["step_time"]),
        "",
        *(_check_line(name, check) for name, check in facts["checks"].items()),
        facts["verdict"],
    ]


def _decision_lines(decisions: Mapping[str, Any]) -> Iterator[str]:
    for name, words in DECISIONS.items():
        decision = decisions[name]
        difference = decision["difference"]
        yield _row(
            f"{words}:",
            cell_text(decision["measured"]),
            cell_text(decision["predicted"]),
            "-" if difference is None else f"{difference:+,}" if difference else "0",
        )


def _latency_lines(latencies: Mapping[str, Any]) -> Iterator[str]:
    for name, facts in latencies.items():
        words = _LATENCY_WORDS[name]
        yield ""
        for statistic in ("median", "p90", "p99"):
            values = facts[statistic]
            yield _row(
                f"{words}, {statistic} (ms):",
                _milliseconds(values["measured_ms"]),
                _milliseconds(values["predicted_ms"]),
                _percent(values["error"], "+"),
            )
        sizes = facts["request_error"]
        yield _row(
            f"  |error| of {facts['requests']:,} requests:",
            "",
            f"median {_percent(sizes['median'])}",
            f"p90 {_percent(sizes['p90'])}",
        )


def _step_time_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield _row("Time in steps (s):", f"{facts['measured_s']:.3f}", f"{facts['predicted_s']:.3f}", "")
    yield _row(
        f"  |error| of {facts['steps']:,} steps:",
        "",
        f"median {_percent(facts['median_error'])}",
        f"p90 {_percent(facts['p90_error'])}",
    )
    yield _row("  error of a step, median:", "", "", _percent(facts["median_signed_error"], "+"))


def _check_line(name: str, check: Mapping[str, Any]) -> str:
    return f"{name.replace('_', ' ')}: {'passed' if check['passed'] else 'FAILED'}: {check['words']}"


def _row(*cells: str) -> str:
    first, *others = cells
    padded: Sequence[str] = [cell.rjust(width) for cell, width in zip(others, _WIDTHS[1:], strict=True)]
    return f"{first:<{_WIDTHS[0]}}{''.join(padded)}".rstrip()


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{share:{sign}.1%}"
