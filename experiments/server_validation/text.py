"""A server's run beside its simulation, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from kvtwin.experiments.display.tables import Part, table

_WORDS = {
    "prefix_cache_queries": "Queried tokens",
    "prefix_cache_hits": "Hit tokens",
    "num_preemptions": "Preemptions",
}

Cells: TypeAlias = tuple[str, str, str, str, str]


def server_parts(facts: Mapping[str, Any]) -> list[Part]:
    """Counters, latencies, the cache's content; then what could not be checked."""
    rows = [*_counters(facts["counters"]), *_latencies(facts["latencies"])]
    parts: list[Part] = [table(("", "measured", "simulated", "error", "with other step times"), rows)]
    if facts["kv_events"]:
        parts += ["", _kv_table(facts["kv_events"]), *_kv_lines(facts["kv_events"])]
    return [*parts, "", *(f"not checked: {what}" for what in facts["unchecked"])]


def _counters(counters: Mapping[str, Any]) -> Iterator[Cells]:
    for key, figure in counters.items():
        difference = figure["simulated"] - figure["measured"]
        yield (
            f"{_WORDS[key]}:",
            f"{figure['measured']:,}",
            f"{figure['simulated']:,}",
            f"{difference:+,}" if difference else "0",
            _spread(figure, ",.0f"),
        )


def _latencies(latencies: Mapping[str, Any]) -> Iterator[Cells]:
    for name, figure in latencies.items():
        digits = ".2f" if figure["unit"] == "s" else ".1f"
        yield (
            f"{name} ({figure['unit']}):",
            format(figure["measured"], digits),
            format(figure["simulated"], digits),
            f"{figure['error']:+.1%}",
            _spread(figure, digits),
        )


def _spread(figure: Mapping[str, Any], digits: str) -> str:
    if figure["spread"] is None:
        return ""
    low, high = (format(value, digits) for value in figure["spread"])
    return f"{low} to {high}{'' if figure['inside'] else ' (measured is outside)'}"


def _kv_table(kv: Mapping[str, Any]) -> Part:
    rows = []
    for kind in ("stored", "removed", "left at the end"):
        sides = kv[kind]
        names = ("measured", "simulated", "only_measured", "only_simulated")
        rows.append((f"Blocks {kind}:", *(f"{sides[name]:,}" for name in names)))
    return table(("", "measured", "simulated", "only measured", "only simulated"), rows)


def _kv_lines(kv: Mapping[str, Any]) -> Iterator[str]:
    if kv["unknown_measured"]:
        yield f"{kv['unknown_measured']:,} blocks in the server's log were stored before it begins"
    if kv["unknown_simulated"]:
        yield f"{kv['unknown_simulated']:,} blocks in the simulation's log were stored before it begins"
    yield f"first difference: {kv['first_difference'] or 'none'}"
    yield from kv["differing"]
