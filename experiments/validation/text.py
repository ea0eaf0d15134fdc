"""A prediction beside its measurement, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from kvtwin.experiments.display.tables import Part, table
from kvtwin.experiments.display.values import cell_text
from kvtwin.experiments.runs.spread import FIGURES, figure_text, range_text
from kvtwin.experiments.validation.drift import drift_line
from kvtwin.experiments.validation.facts import DECISIONS, OF_REPLICA

_LATENCY_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E latency"}
_NO_CELLS = ("", "", "", "")

Cells: TypeAlias = tuple[str, str, str, str]


def text_parts(facts: Mapping[str, Any]) -> list[Part]:
    """Decisions, latencies, step times, checks; the verdict last."""
    rows = [
        *_decisions(facts["decisions"]),
        *_latencies(facts["latencies"]),
        *_step_times(facts["step_time"]),
    ]
    return [
        table(("", "measured", "predicted", "error"), rows),
        "",
        table(("", "measured", "with steps 20% off, or 1 to 5% at random", ""), list(_spread(facts["spread"]))),
        "",
        *_replica_parts(facts.get("replicas", ())),
        drift_line(facts["machine"]),
        *(line for name, check in facts["checks"].items() for line in _check_lines(name, check)),
        facts["verdict"],
    ]


def _decisions(decisions: Mapping[str, Any]) -> Iterator[Cells]:
    for name, words in DECISIONS.items():
        decision = decisions[name]
        difference = decision["difference"]
        yield (
            f"{words}:",
            cell_text(decision["measured"]),
            cell_text(decision["predicted"]),
            "-" if difference is None else f"{difference:+,}" if difference else "0",
        )


def _spread(spread: Mapping[str, Any]) -> Iterator[Cells]:
    for name, figure in spread.items():
        bounds = range_text(figure["low"], figure["high"])
        yield FIGURES[name], figure_text(figure["measured"]), bounds, "" if figure["inside"] else "outside"


def _latencies(latencies: Mapping[str, Any]) -> Iterator[Cells]:
    for name, facts in latencies.items():
        words = _LATENCY_WORDS[name]
        yield _NO_CELLS
        for statistic in ("median", "p90", "p99"):
            values = facts[statistic]
            yield (
                f"{words}, {statistic} (ms):",
                _milliseconds(values["measured_ms"]),
                _milliseconds(values["predicted_ms"]),
                _percent(values["error"], "+"),
            )
        sizes = facts["request_error"]
        yield (
            f"  |error| of {facts['requests']:,} requests:",
            "",
            f"median {_percent(sizes['median'])}",
            f"p90 {_percent(sizes['p90'])}",
        )


def _step_times(facts: Mapping[str, Any]) -> Iterator[Cells]:
    yield _NO_CELLS
    yield ("Time in steps (s):", f"{facts['measured_s']:.3f}", f"{facts['predicted_s']:.3f}", "")
    yield (
        f"  |error| of {facts['steps']:,} steps:",
        "",
        f"median {_percent(facts['median_error'])}",
        f"p90 {_percent(facts['p90_error'])}",
    )
    yield ("  error of a step, median:", "", "", _percent(facts["median_signed_error"], "+"))


def _replica_parts(replicas: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    """A row per replica: what each decided, measured / predicted."""
    if replicas:
        rows = [[str(number), *map(_both, decisions.values())] for number, decisions in enumerate(replicas)]
        yield "Replicas, measured / predicted:"
        yield table(("", *(words.lower() for words in OF_REPLICA.values())), rows)
        yield ""


def _both(decision: Mapping[str, Any]) -> str:
    return f"{cell_text(decision['measured'])} / {cell_text(decision['predicted'])}"


def _check_lines(name: str, check: Mapping[str, Any]) -> Iterator[str]:
    """What came of a check, and of each replica's."""
    yield _check_line(name.replace("_", " "), check)
    for number, replica in enumerate(check.get("replicas", ())):
        yield _check_line(f"  replica {number}", replica)


def _check_line(name: str, check: Mapping[str, Any]) -> str:
    return f"{name}: {'passed' if check['passed'] else 'FAILED'}: {check['words']}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _percent(share: float | None, sign: str = "") -> str:
    return "-" if share is None else f"{share:{sign}.1%}"
